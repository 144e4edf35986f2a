"""The small world: its people, places, animals, things, and what is always true in it."""

NAMES_HER = (
    "Mara Anna Lily Rose Ella Nora Ida Clara Alma June Ruth Vera Tessa Olive Hazel Ivy Greta Mina Lena Dora Elsa Freya Hanna Jill "
    "Kate Luna May Nell Pia Sara Tilly Wanda Zoe Bella Edith Flora Gwen Iris Joan Lucy Molly Emma Sophie Alice Grace Maria Eva"
).split()
NAMES_HIM = (
    "Tom Ben Sam Max Leo Finn Otto Hugo Paul Karl Anton Emil Felix Jonas Oskar Theo Victor Walter Adam Bruno Carl David Erik Frank "
    "George Henry Ivan Jack Luke Mark Noah Oliver Peter Robert Simon Tim Will Arthur Albert Daniel Edgar Fred Jacob Martin Nick Rudy"
).split()
SYLLABLES = "ba be bo da de do fa fi ga go ka ke ki la le li lo ma me mi mo na ne no pa pe ra re ri ro sa se so ta te ti to va vi wa ya zo".split()
ENDINGS = "n l r s th x m k nd sh".split()

JOBS = {
    "baker": ("bakes bread", "bakery", "flour"),
    "farmer": ("grows corn and keeps cows", "farm", "seeds"),
    "fisher": ("catches fish", "harbor", "a net"),
    "teacher": ("teaches children", "school", "books"),
    "miller": ("makes flour", "mill", "grain"),
    "gardener": ("grows flowers", "garden", "a spade"),
    "painter": ("paints pictures", "studio", "a brush"),
    "doctor": ("helps sick people", "hospital", "medicine"),
    "carpenter": ("makes tables and chairs", "workshop", "wood"),
    "sailor": ("sails ships", "harbor", "a rope"),
    "shepherd": ("looks after sheep", "hill", "a staff"),
    "cook": ("cooks soup", "kitchen", "a pot"),
    "smith": ("makes tools of iron", "forge", "a hammer"),
    "tailor": ("sews coats", "shop", "thread"),
    "weaver": ("makes cloth", "workshop", "wool"),
    "singer": ("sings songs", "theater", "a voice"),
    "builder": ("builds houses", "town", "bricks"),
    "librarian": ("looks after books", "library", "books"),
    "postman": ("brings letters", "town", "a bag"),
    "clockmaker": ("makes clocks", "shop", "small wheels"),
}

# Singular, plural, young, sound, home, food, what it does.
ANIMALS = {
    "dog": ("dogs", "puppy", "barks", "house", "meat", "run"),
    "cat": ("cats", "kitten", "purrs", "house", "fish", "climb"),
    "cow": ("cows", "calf", "moos", "barn", "grass", "give milk"),
    "horse": ("horses", "foal", "neighs", "stable", "hay", "run"),
    "sheep": ("sheep", "lamb", "bleats", "hill", "grass", "give wool"),
    "goat": ("goats", "kid", "bleats", "hill", "leaves", "climb"),
    "pig": ("pigs", "piglet", "grunts", "sty", "corn", "dig"),
    "hen": ("hens", "chick", "clucks", "yard", "grain", "lay eggs"),
    "duck": ("ducks", "duckling", "quacks", "pond", "weeds", "swim"),
    "goose": ("geese", "gosling", "honks", "pond", "grass", "swim"),
    "owl": ("owls", "owlet", "hoots", "tree", "mice", "fly at night"),
    "crow": ("crows", "chick", "caws", "tree", "seeds", "fly"),
    "frog": ("frogs", "tadpole", "croaks", "pond", "flies", "jump"),
    "bee": ("bees", "larva", "buzzes", "hive", "nectar", "make honey"),
    "fox": ("foxes", "cub", "yelps", "den", "berries", "run"),
    "wolf": ("wolves", "cub", "howls", "forest", "meat", "hunt"),
    "bear": ("bears", "cub", "growls", "cave", "honey", "sleep in winter"),
    "lion": ("lions", "cub", "roars", "plain", "meat", "hunt"),
    "tiger": ("tigers", "cub", "roars", "jungle", "meat", "swim"),
    "elephant": ("elephants", "calf", "trumpets", "plain", "leaves", "carry trees"),
    "mouse": ("mice", "pup", "squeaks", "hole", "cheese", "hide"),
    "rabbit": ("rabbits", "kit", "squeaks", "burrow", "carrots", "jump"),
    "squirrel": ("squirrels", "kit", "chatters", "tree", "nuts", "climb"),
    "deer": ("deer", "fawn", "bleats", "forest", "grass", "run"),
    "snake": ("snakes", "hatchling", "hisses", "grass", "eggs", "hide"),
    "whale": ("whales", "calf", "sings", "sea", "fish", "dive"),
    "seal": ("seals", "pup", "barks", "sea", "fish", "dive"),
    "monkey": ("monkeys", "baby", "chatters", "jungle", "fruit", "climb"),
    "parrot": ("parrots", "chick", "talks", "jungle", "seeds", "fly"),
    "donkey": ("donkeys", "foal", "brays", "stable", "hay", "carry bags"),
    "turtle": ("turtles", "hatchling", "hisses", "beach", "leaves", "swim"),
    "swan": ("swans", "cygnet", "hisses", "lake", "weeds", "swim"),
    "camel": ("camels", "calf", "grunts", "desert", "leaves", "walk far"),
    "hedgehog": ("hedgehogs", "hoglet", "squeaks", "garden", "snails", "roll up"),
    "eagle": ("eagles", "eaglet", "cries", "mountain", "fish", "fly"),
}

# Place: words before it after "was", words before it after "went".
PLACES = {
    "forest": "in",
    "village": "in",
    "garden": "in",
    "kitchen": "in",
    "market": "at",
    "river": "by",
    "lake": "by",
    "mill": "at",
    "hill": "on",
    "barn": "in",
    "school": "at",
    "bridge": "on",
    "tower": "in",
    "cave": "in",
    "harbor": "at",
    "beach": "on",
    "island": "on",
    "castle": "in",
    "library": "in",
    "bakery": "in",
    "meadow": "in",
    "mountain": "on",
    "cellar": "in",
    "attic": "in",
    "station": "at",
    "church": "in",
    "shop": "in",
    "field": "in",
    "well": "by",
    "old oak": "under",
    "pond": "by",
    "farm": "on",
    "workshop": "in",
    "town square": "in",
    "orchard": "in",
    "lighthouse": "in",
    "stable": "in",
    "valley": "in",
    "museum": "in",
    "theater": "in",
}

# Thing: what it is made of, what it is for.
THINGS = {
    "key": ("iron", "opening a door"),
    "lamp": ("glass", "making light"),
    "book": ("paper", "reading"),
    "map": ("paper", "finding the way"),
    "ring": ("gold", "wearing on a finger"),
    "rope": ("hemp", "tying things"),
    "basket": ("straw", "carrying things"),
    "cup": ("clay", "drinking"),
    "hat": ("wool", "keeping the head warm"),
    "coat": ("wool", "keeping warm"),
    "drum": ("wood", "making music"),
    "flute": ("wood", "making music"),
    "boat": ("wood", "crossing water"),
    "kite": ("paper", "flying in the wind"),
    "ball": ("leather", "playing"),
    "bell": ("metal", "ringing"),
    "box": ("wood", "keeping things"),
    "clock": ("metal", "telling the time"),
    "mirror": ("glass", "seeing yourself"),
    "candle": ("wax", "making light"),
    "spoon": ("metal", "eating soup"),
    "knife": ("metal", "cutting"),
    "hammer": ("iron", "driving nails"),
    "ladder": ("wood", "climbing up"),
    "chair": ("wood", "sitting"),
    "table": ("wood", "eating at"),
    "blanket": ("wool", "sleeping under"),
    "bottle": ("glass", "keeping water"),
    "coin": ("silver", "paying"),
    "letter": ("paper", "telling news"),
    "umbrella": ("cloth", "keeping dry"),
    "needle": ("metal", "sewing"),
    "net": ("rope", "catching fish"),
    "wagon": ("wood", "carrying loads"),
    "saddle": ("leather", "riding"),
    "broom": ("straw", "sweeping"),
    "bucket": ("metal", "carrying water"),
    "violin": ("wood", "making music"),
    "lantern": ("glass", "making light"),
    "scarf": ("wool", "keeping warm"),
}

FOODS = (
    "bread cheese soup honey cake rice corn milk butter fish plums apples pears cherries berries nuts carrots potatoes beans onions eggs "
    "pancakes noodles tea jam porridge grapes lemons mushrooms pie"
).split()
FRUITS = "apples pears plums cherries grapes lemons berries oranges peaches".split()
COLORS = "red blue green yellow white black brown gray orange purple pink golden silver".split()
ADJECTIVES = (
    "small big old new shiny heavy light wooden broken pretty strange simple round long short thin warm clean dusty".split()
)
TRAITS = "kind brave shy clever quiet cheerful curious patient careful proud gentle lazy honest stubborn friendly funny".split()
FEELINGS = "happy sad tired angry afraid proud lonely surprised hungry calm worried glad".split()
SEASONS = {"spring": "the flowers open", "summer": "the sun is hot", "autumn": "the leaves fall", "winter": "the snow falls"}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()
OPPOSITES = {
    "big": "small",
    "hot": "cold",
    "day": "night",
    "old": "young",
    "long": "short",
    "light": "dark",
    "happy": "sad",
    "fast": "slow",
    "up": "down",
    "open": "closed",
    "full": "empty",
    "hard": "soft",
    "wet": "dry",
    "early": "late",
    "rich": "poor",
    "near": "far",
    "left": "right",
    "loud": "quiet",
    "strong": "weak",
    "first": "last",
    "high": "low",
    "clean": "dirty",
    "thick": "thin",
}
# Subject and color; "a" and "the" are part of the subject.
COLORED = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "the sun": "yellow",
    "a lemon": "yellow",
    "a cherry": "red",
    "coal": "black",
    "milk": "white",
    "a carrot": "orange",
    "blood": "red",
    "a leaf in summer": "green",
    "chocolate": "brown",
    "a crow": "black",
    "a plum": "purple",
    "a swan": "white",
    "honey": "golden",
    "a strawberry": "red",
    "a frog": "green",
    "an elephant": "gray",
}
TRUTHS = (
    ("What falls from the clouds?", "Rain falls from the clouds."),
    ("What do we drink when we are thirsty?", "We drink water when we are thirsty."),
    ("Where does the sun rise?", "The sun rises in the east."),
    ("Where does the sun set?", "The sun sets in the west."),
    ("When do we see the stars?", "We see the stars at night."),
    ("What is ice?", "Ice is frozen water."),
    ("What is bread made of?", "Bread is made of flour and water."),
    ("What is cheese made of?", "Cheese is made of milk."),
    ("What do bees make?", "Bees make honey."),
    ("Where do fish live?", "Fish live in water."),
    ("Where do birds sleep?", "Birds sleep in their nests."),
    ("What do we use to see?", "We use our eyes to see."),
    ("What do we use to hear?", "We use our ears to hear."),
    ("What do we use to smell?", "We use our nose to smell."),
    ("How many legs does a dog have?", "A dog has four legs."),
    ("How many legs does a bird have?", "A bird has two legs."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many legs does a bee have?", "A bee has six legs."),
    ("How many days are in a week?", "There are seven days in a week."),
    ("How many months are in a year?", "There are twelve months in a year."),
    ("How many hours are in a day?", "There are twenty-four hours in a day."),
    ("How many seasons are in a year?", "There are four seasons in a year."),
    ("What do plants need to grow?", "Plants need water and light to grow."),
    ("What happens when ice gets warm?", "When ice gets warm, it melts and becomes water."),
    ("What happens when water gets very cold?", "When water gets very cold, it becomes ice."),
    ("Why do people wear coats in winter?", "People wear coats in winter because it is cold."),
    ("Why do we sleep?", "We sleep because we are tired and need rest."),
    ("Why do birds have wings?", "Birds have wings because they fly."),
    ("Who are you?", "I am a small model of a small world. I tell stories, answer questions, and remember what you tell me."),
    ("What can you do?", "I can tell a story, answer a question, write a list, and remember words that you tell me."),
    ("Hello!", "Hello! What would you like to hear?"),
    ("How are you?", "I am well, thank you. Shall I tell you a story?"),
    ("Thank you.", "You are welcome."),
    ("Good night.", "Good night! Sleep well."),
)
SECRET_WORDS = (
    "apple river stone cloud moon table window garden silver paper winter candle bridge feather mountain bottle forest hammer island "
    "jacket kitchen ladder market needle orange pencil queen rabbit saddle tower umbrella valley wagon yellow zebra anchor basket copper "
    "desert engine flower glass harvest iron jewel king lemon mirror night ocean pepper quiet ribbon sugar thunder velvet water yarn acorn "
    "butter castle dragon eagle finger ginger honey ink jungle kettle lantern magnet nest olive pocket quill rocket summer turtle violin "
    "whale breeze button carpet drum ember fence goose hat ivory jar knot leaf maple nickel oyster pillow raven salt tiger uncle vine wheel "
    "autumn barrel cherry dance elbow frost grape horn insect judge ketchup lamp melon north onion plum roof sand tooth vest wolf arrow "
    "bread coral dusk echo flame grain hill ice joke kite lake mud noon oak pearl rain shell tent wave bell chalk deer earth fox gate heart "
    "inch lily mouse net owl path rope ship tree voice wind ball coin door egg fish gold hand kid lion map nut pond ring star time wood"
).split()
