"""Plots: what happens in the stories, sentence by sentence.

`[a|b]` is a choice. `{h}` is the hero, `{f}` a friend, `{o}` a thing, `{a}` an animal, `{p}` and `{q}` places, `{e}` food. `{h.he}`,
`{h.him}`, `{h.his}` are pronouns (`{h.He}` opens a sentence after a quotation); `{o.a}`, `{o.the}`, `{o.it}` and `{p.at}`, `{p.to}`,
`{p.the}` are the thing and the place with their small words. A beat that begins with `?` may be left out. `ask` has questions
about the episode with their answers.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    """One thing that can happen: a title, beats in their order, and questions."""

    title: str
    beats: tuple[str, ...]
    ask: tuple[tuple[str, str], ...]


PLOTS = (
    Plot(
        "The Lost {O}",
        (
            "[One day|One morning|On {day}], {h} [could not find|lost] {h.his} {o}.",
            "[{h.He} looked under the bed and behind the door, but {o.the} was not there.|{h.He} looked everywhere {p.at}, but {h.he} did not see it.]",
            "?{h} was [very sad|worried], because {o.the} was a gift from {h.his} [mother|father|grandmother].",
            '"[Do not cry|Do not worry]," said {f}. "[I will help you|We will find it together]."',
            "[Together they walked|They went] {q.to} and [looked carefully|searched for a long time].",
            "[At last|In the end], {f} found {o.the} {q.at}, [under some leaves|behind a stone|next to {a.a}|in the grass].",
            '[{h} was so happy that {h.he} jumped.|{h} laughed and hugged {f}.] "Thank you!" {h.he} said.',
        ),
        (
            ("What did {h} lose?", "{h} lost {h.his} {o}."),
            ("Who found the {o}?", "{f} found the {o}."),
            ("Where was the {o}?", "The {o} was {q.at}."),
        ),
    ),
    Plot(
        "The Storm",
        (
            "[One evening|On {day}|One day in {season}], {h} and {f} were {p.at}.",
            "[Suddenly|Then] the sky became dark and [the wind blew hard|it began to rain].",
            "[{f} was afraid of the thunder.|The rain was so strong that they could not see the road.]",
            '"[Quick|Come with me]!" said {h}. "[We can hide {q.at}|It is dry {q.at}]."',
            "They ran {q.to} and waited [for an hour|until the storm was over|all night].",
            "?{h} lit a candle, and {f} told a funny story.",
            "[When the rain stopped|In the morning], they saw a [beautiful|bright] rainbow [over the hills|over the houses].",
        ),
        (
            ("Where did they hide?", "They hid {q.at}."),
            ("Who was with {h}?", "{f} was with {h}."),
            ("What did they see after the storm?", "After the storm they saw a rainbow."),
        ),
    ),
    Plot(
        "The Gift",
        (
            "It was {f.his_name} birthday, and {h} wanted to give {f.him} {o.a}.",
            "[But {h} had no money.|But {o.the} in the shop cost too much.]",
            "So {h.he} [worked {p.at} for three days|sold {e} {p.at}|helped an old woman {p.at}] [and got five coins|and earned a little money].",
            "[Then {h.he} went to the market and bought {o.the}.|With the money {h.he} bought {o.the}.]",
            "{h} put it in a {color} box and carried it to {f}.",
            'When {f} opened the box, {f.he} [smiled|could not speak for joy]. "[This is the best gift of all|It is just what I wanted]!" {f.he} said.',
        ),
        (
            ("What did {h} give to {f}?", "{h} gave {f} {o.a}."),
            ("Whose birthday was it?", "It was {f.his_name} birthday."),
            ("What color was the box?", "The box was {color}."),
        ),
    ),
    Plot(
        "The Hungry {A}",
        (
            "[One cold morning|One day|In {season}], {h} saw {a.a} {p.at}.",
            "The {a} was [thin and hungry|cold and alone|so hungry that it could hardly walk].",
            "{h} [went home and came back with some {e}|gave it some of {h.his} {e}|shared {h.his} {e} with it].",
            "The {a} ate everything and [looked at {h.him} with bright eyes|went to sleep beside {h.him}].",
            "From that day on, the {a} [followed {h} everywhere|waited for {h} every morning].",
            '?{f} said, "[That is a good friend|You have a kind heart]!"',
            "[A week later|One night], {h} lost {h.his} way {q.at}, and it was the {a} that showed {h.him} the way home.",
        ),
        (
            ("What animal did {h} see?", "{h} saw {a.a}."),
            ("What did {h} give to the {a}?", "{h} gave the {a} some {e}."),
            ("Who showed {h} the way home?", "The {a} showed {h} the way home."),
        ),
    ),
    Plot(
        "The Quarrel",
        (
            "{h} and {f} were good friends, but [one day|on {day}] they [quarreled|had a quarrel] about {o.a}.",
            '"[It is mine|I saw it first]!" said {h}. "[No, it is mine|No, I found it]!" said {f}.',
            "[They pulled and pulled, until it fell on the ground and broke.|They both pulled, and {o.the} broke in two.]",
            "[{f} went home and did not speak to {h}.|{h} ran away {p.to} and sat there alone.]",
            '[That night {h} could not sleep.|After a while {h} felt sorry.] {h.He} thought, "A friend is better than {o.a}."',
            '[The next day|In the morning] {h} [went to {f}|knocked at {f.his_name} door] and said, "I am sorry."',
            '"I am sorry too," said {f}. [They repaired the {o} together.|Together they made a new one, and it was better than the old one.]',
        ),
        (
            ("Why did {h} and {f} quarrel?", "They quarreled about {o.a}."),
            ("What happened to the {o}?", "The {o} broke."),
            ("Who said sorry first?", "{h} said sorry first."),
        ),
    ),
    Plot(
        "The Journey",
        (
            "[One day|Early in the morning|On {day}], {h} [packed a bag|took {h.his} bag] with {e} and {o.a}.",
            '"[Where are you going|Where do you want to go]?" asked {f}. "I am going {p.to}," said {h}.',
            "The way was long. First {h.he} came {q.to}, where {h.he} [rested|slept] under a tree.",
            'There {h.he} met {a.a}. "[May I come with you|Will you take me with you]?" asked the {a}.',
            "So they went on together, [over the hills and through the woods|day after day|along the river].",
            "When they were hungry, they ate the {e}.",
            "[At last|After three days] they came {p.to}, and it was [more beautiful than {h} had dreamed|full of light and music].",
        ),
        (
            ("Where did {h} want to go?", "{h} wanted to go {p.to}."),
            ("Whom did {h} meet on the way?", "On the way {h} met {a.a}."),
            ("What did {h} take along?", "{h} took {e} and {o.a}."),
        ),
    ),
    Plot(
        "The Garden",
        (
            "In spring, {h} [planted|put] some seeds in the garden.",
            "Every day {h.he} [gave them water|brought them a bucket of water] and waited.",
            "[But nothing grew, and {h} became sad.|For a long time nothing happened.]",
            '"[You must be patient|Good things need time]," said {f}.',
            "[One morning|After two weeks], a small green leaf came out of the ground.",
            "In summer there were so many {fruit} that {h} [could not eat them all|gave some to everyone in the village].",
            "?Even {a.a} came and ate one.",
            "{h} kept a few seeds for the next year.",
        ),
        (
            ("When did {h} plant the seeds?", "{h} planted the seeds in spring."),
            ("What grew in the garden?", "{Fruit} grew in the garden."),
            ("Who said that {h} must be patient?", "{f} said that."),
        ),
    ),
    Plot(
        "The Race",
        (
            "[Every year|In {season}] there was a race from the {p} to the {q}.",
            "{h} wanted to win, but {f} was [faster|stronger and had longer legs].",
            '"[You will never win|I am the fastest of all]," {f} said and laughed.',
            "[The race began, and {f} was soon far ahead.|When the race began, {f} ran like the wind.]",
            "[Near the bridge|Halfway], {f} stopped [to drink some water|to sleep under a tree|to eat some {e}].",
            "But {h} did not stop. {h.He} ran and ran, step by step.",
            "[When {f} looked up, {h} was already there.|So {h} came to the {q} first.] Everyone [cheered|clapped], and {h} got {o.a}.",
        ),
        (
            ("Who won the race?", "{h} won the race."),
            ("Why did {f} lose?", "{f} lost because {f.he} stopped on the way."),
            ("What did {h} get?", "{h} got {o.a}."),
        ),
    ),
    Plot(
        "The {A} and the {A2}",
        (
            "[Once|Long ago] there lived {a.a} and {b.a} {p.at}.",
            "The {a} was [big and loud|strong and proud], and the {b} was [small and quiet|clever and shy].",
            '"[I am stronger than you|Nobody is as strong as I am]," said the {a}. "[You cannot do anything|What can you do]?"',
            "The {b} [said nothing|only smiled].",
            "[But one day|Then, on {day}], the {a} fell into [a deep hole|a trap|the water] {q.at} and could not get out.",
            '"Help! Help!" it cried. The {b} heard it and [ran to it|came at once] [with a rope|with all its friends].',
            'They pulled, and soon the {a} was free. "[I was wrong|Forgive me]," it said. "[You are small, but you are a great friend|Now I know how strong you are]."',
        ),
        (
            ("Who fell into trouble?", "The {a} did."),
            ("Who helped the {a}?", "The {b} helped the {a}."),
            ("Where did the {a} and the {b} live?", "They lived {p.at}."),
        ),
    ),
    Plot(
        "The Strange Box",
        (
            "[One day|One rainy day], {h} found a [strange|small|dusty] {color} box {p.at}.",
            "It was [closed|locked], and there was no key.",
            '"[What is in it|What can it be]?" asked {f}. "[Perhaps it is gold|Maybe it is a secret]," said {h}.',
            "They [shook it and heard a soft sound|tried to open it with a knife, but it did not open].",
            "Then {a.a} came with [a tiny key|a little key] [in its mouth|around its neck].",
            "{h} opened the box. Inside there was [only {o.a}|{o.a} and a letter].",
            "[{h} took it home and kept it for the rest of {h.his} life.|{f} laughed, but {h} thought it was wonderful.]",
        ),
        (
            ("What did {h} find?", "{h} found a {color} box."),
            ("Who brought the key?", "{a.A} brought the key."),
            ("What was in the box?", "There was {o.a} in the box."),
        ),
    ),
    Plot(
        "The Soup",
        (
            "[One evening|On {day}] {h} [was hungry and wanted to cook soup|wanted to make soup for {f}].",
            "{h.He} [took a big pot|put a pot of water on the fire] and added {e}.",
            "But [when {h.he} tasted it, it was not good|the soup had no taste].",
            '"[It needs salt|Something is missing]," said {f}, and [went {p.to} to get some salt|brought some salt and two onions].',
            "[Meanwhile {a.a} came in through the window.|Just then {a.a} came to the door.] It smelled the soup and [wanted some too|waited].",
            "They all sat down [at the table|by the fire] and ate until the pot was empty.",
        ),
        (
            ("What did {h} cook?", "{h} cooked soup with {e}."),
            ("What did the soup need?", "The soup needed salt."),
            ("Which animal came?", "{a.A} came."),
        ),
    ),
    Plot(
        "The Sick Friend",
        (
            "[One day|On {day}], {f} was sick and had to stay in bed.",
            '{h} [came to see {f.him}|sat beside the bed] and asked, "[What can I do for you|How are you]?"',
            '"[I am so bored|I am cold and sad]," said {f}. "[I wish I had {o.a}|I would like some {e}]."',
            "{h} went {p.to} and [talked to the {job}|asked the {job} for help].",
            "The {job} gave {h.him} [a warm drink|good medicine|a warm soup] for {f}.",
            "[The next morning|After two days] {f} felt [much better|well again].",
            '"[A friend is the best medicine|You are a true friend]," {f.he} said.',
        ),
        (
            ("Who was sick?", "{f} was sick."),
            ("Whom did {h} ask for help?", "{h} asked the {job}."),
            ("Where did {h} go?", "{h} went {p.to}."),
        ),
    ),
    Plot(
        "The Broken {O}",
        (
            "{h} had {o.a}, but [one day it broke|on {day} it fell down and broke].",
            '"[Nobody can repair it|It is too old]," said {f}.',
            "[{h} did not believe it and took it to the {job}.|But {h} went to the {job}, who lived {p.at}.]",
            'The {job} [looked at it for a long time|put on glasses and looked at it]. "[Come back tomorrow|I will try]," said the {job}.',
            "[The next day|On {day2}] the {o} was [as good as new|whole again].",
            '"How much must I pay?" asked {h}. "[A song|A coin|A smile] is enough," said the {job}.',
            "[So {h} sang, and everyone was happy.|So {h} thanked the {job} and went home.]",
        ),
        (
            ("What broke?", "The {o} broke."),
            ("Who repaired the {o}?", "The {job} repaired it."),
            ("Where did the {job} live?", "The {job} lived {p.at}."),
        ),
    ),
    Plot(
        "At Night",
        (
            "[One night|Late at night], {h} heard a [strange|soft|loud] sound {p.at}.",
            "{h.He} [was afraid, but {h.he} wanted to know what it was|took {h.his} lamp and went out].",
            "[It was dark, and the moon was behind the clouds.|The moon was full, and the grass was white.]",
            '"Who is there?" {h} asked. [Nobody answered.|There was no answer.]',
            "Then {h.he} saw two [bright|yellow|green] eyes. It was only {a.a}!",
            "It had [hurt its leg|lost its mother|caught its foot in a rope], and {h} helped it.",
            "[Before the sun rose|At the end of the night], {h} went back to bed and [slept until noon|dreamed of {q.the}].",
        ),
        (
            ("What did {h} hear?", "{h} heard a sound {p.at}."),
            ("What was it?", "It was {a.a}."),
            ("When did it happen?", "It happened at night."),
        ),
    ),
    Plot(
        "The Market",
        (
            "On {day}, {h} went to the market with {NUM} coins.",
            '{h.His} mother had said, "Buy {e} and {e2}, and nothing else."',
            "[But at the market {h} saw {o.a}.|But then {h} saw a man who sold {o.a}.] It was [so beautiful|{color} and shiny].",
            "[{h} gave all {h.his} coins for it.|{h} could not stop looking at it and bought it.]",
            "[On the way home|Near the {p}] {h.he} met {f}, who [had too much {e}|came from the field with {e}].",
            '"[I will give you {e} for the {o}|Let us trade]," said {f}. {h} [thought for a while and agreed|agreed at once].',
            "So {h} came home with {e} after all, and {h.his} mother [never knew|laughed when she heard it].",
        ),
        (
            ("Where did {h} go?", "{h} went to the market."),
            ("What did {h} buy?", "{h} bought {o.a}."),
            ("What did {f} give to {h}?", "{f} gave {h} {e}."),
        ),
    ),
    Plot(
        "The New Song",
        (
            "{h} wanted to learn to [play the flute|sing|play the drum], but it was [hard|not easy].",
            "[At first it sounded terrible, and {a.a} ran away.|The first day it sounded like {a.a}.]",
            '"[Please stop|My poor ears]!" said {f}.',
            "But {h} practiced every day {p.at}, [where nobody could hear {h.him}|from morning to evening].",
            "[Weeks passed.|The summer went by.] One evening {h} played [for the whole village|in the town square].",
            "[Everyone was quiet.|Nobody said a word.] Then they all [clapped|began to dance], and {f} [clapped the loudest|was the first of them].",
        ),
        (
            ("Where did {h} practice?", "{h} practiced {p.at}."),
            ("What did {f} say at first?", "{f} asked {h} to stop."),
            ("What did the people do at the end?", "They were happy and clapped or danced."),
        ),
    ),
    Plot(
        "The Bridge",
        (
            "[After a long rain|In {season}], the river was so high that the bridge broke.",
            "Nobody could get {p.to} any more, and {h} [was on one side and {f} on the other|could not visit {f}].",
            '"We must build a new bridge," said {h}. [Everyone had to help.|"Who will help me?"]',
            "The carpenter brought wood, the smith brought nails, and {h} brought {o.a}.",
            "They worked [for seven days|for a whole month|day and night].",
            "?Even {a.a} carried [stones|wood].",
            "When the bridge was ready, {f} was the first to walk over it, and [they had a great feast with {e}|they all ate {e} together].",
        ),
        (
            ("Why did the bridge break?", "The bridge broke because the river was too high."),
            ("Who walked over the new bridge first?", "{f} walked over it first."),
            ("What did {h} bring?", "{h} brought {o.a}."),
        ),
    ),
    Plot(
        "The Secret",
        (
            '"[Can you keep a secret|I must tell you something]?" {f} asked {h} [one day|on {day}] {p.at}.',
            '"[Of course|Yes, I can]," said {h}.',
            '"[I have hidden {o.a} {q.at}|There is {o.a} {q.at}]," said {f}. "[Do not tell anyone|Nobody knows it but you]."',
            "{h} [went home and said nothing|kept the secret for many days].",
            "[But {h.his} brother asked again and again.|But it was hard to say nothing.]",
            "[In the end {h} told only the {a}, and the {a} told nobody.|Still, {h} never told anyone.]",
            "[So the secret was safe.|And so the {o} is still there today.]",
        ),
        (
            ("Who had a secret?", "{f} had a secret."),
            ("What was hidden?", "It was {o.a}."),
            ("Where was it hidden?", "It was hidden {q.at}."),
        ),
    ),
    Plot(
        "The Snow",
        (
            "When {h} woke up, [everything was white|the whole village was white]. It had snowed all night.",
            "{h} [put on a warm coat|put on {h.his} {color} hat] and ran {p.to}.",
            "{f} was already there. [They made a big snowman|They built a house of snow] and gave it {o.a}.",
            "[Then {a.a} came out of the woods.|Then they saw {a.a} in the snow.] Its feet were cold, so they [carried it home|made a fire].",
            "[At home they drank hot milk.|In the evening they ate {e} and looked at the snow.]",
            "[In the morning the sun came, and the snow melted.|A week later the snow was gone, and only the {o} was left.]",
        ),
        (
            ("What was the weather like?", "It had snowed."),
            ("Who was there already?", "{f} was there already."),
            ("What did they give to the snow?", "They gave it {o.a}."),
        ),
    ),
    Plot(
        "The Little Boat",
        (
            "{h} [built|had] a little boat of wood and painted it {color}.",
            "[One windy day|On {day}] {h.he} put it on the water {p.at}, and the wind took it away.",
            "{h} ran after it, but [it was too fast|the water was too deep].",
            "The boat went [under the bridge and past the mill|down the river], until {f} saw it {q.at}.",
            "{f} [took it out of the water|caught it with a net] and read {h.his_name} name on it.",
            '[So {f} brought it back, and they became friends.|The next day {f} came and asked, "Is this yours?"]',
            "Now they [sail it together every summer|play with it every day].",
        ),
        (
            ("What color was the boat?", "The boat was {color}."),
            ("Who found the boat?", "{f} found the boat."),
            ("Where did {f} find it?", "{f} found it {q.at}."),
        ),
    ),
)

OPENINGS = (
    "[Once upon a time|Once|Long ago] there was a [{trait}|{trait} young|{trait} little] {h.kind} [named|called] {h}.",
    "[Once upon a time|Many years ago], a {trait} {h.kind} [named|called] {h} lived {r.at}.",
    "{h} was a {trait} {h.kind} who lived {r.at}.",
    "There was once a {job} [named|called] {h}. {h.He} lived {r.at} [with {h.his} {pet}|all alone|with {h.his} family].",
    "[Near the {r}|In a small house near the {r}] lived a {h.kind} [named|called] {h}.",
)
DETAILS = (
    "{h.He} [liked|loved] {e} more than anything else.",
    "{h.He} had {o2.a} and a {color2} {thing}.",
    "{h.His} best friend was {f}, who was {trait2}.",
    "{h.He} was [always|often] {feeling}, and everyone [knew it|liked {h.him}].",
    "Every {day}, {h.he} [walked {q2.to}|went {q2.to} to see the {animal}|worked {q2.at}].",
    "{h.He} had a {pet} that [slept all day|could sing|was afraid of the dark|followed {h.him} everywhere].",
)
ENDINGS_OF_STORIES = (
    "And they lived happily for many years.",
    "From that day on, {h} and {f} were the best of friends.",
    "{h} never forgot that day.",
    "That is how {h} learned to be {trait2}.",
    "And if you go {r.to} today, you can still hear this story.",
    "That night {h} slept very well.",
    "And {h} was never {feeling} again.",
    "The end.",
)
LINKS = (
    "[A few days later|Some time later|The next week|In the following {season}], [something else happened|there was more to come].",
    "But that was not all.",
    "[Years passed|Time went by].",
)
