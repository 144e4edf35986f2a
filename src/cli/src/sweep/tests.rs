//! What is swept, what is found, and what is said when it makes no sense.
