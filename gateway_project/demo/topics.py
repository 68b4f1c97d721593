"""What people ask, and sentences of which answers to it are made."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    """``sentences`` may be told in any number, in their order; ``{…}`` is filled from ``WORDS``."""

    questions: tuple[str, ...]
    sentences: tuple[str, ...]


WORDS: dict[str, tuple[str, ...]] = {
    "name": ("Mara", "Jonas", "Ada", "Ibrahim", "Lucía", "Søren", "Aiko", "Priya", "Tomasz"),
    "place": ("harbour", "lighthouse", "old mill", "station", "museum", "greenhouse", "library"),
    "thing": ("lamp", "letter", "compass", "brass key", "radio", "map", "clock", "blue coat"),
    "weather": ("fog", "rain", "thin snow", "wind", "grey light", "dusk", "silence"),
    "animal": ("gull", "dog", "fox", "owl", "heron", "cat"),
    "product": ("AX-200", "HomeBox 7", "BlueRoute 11", "TerraCam 3", "SoloSpeak"),
    "day": ("Monday", "Tuesday", "Thursday", "Friday", "the weekend"),
    "number": ("two", "three", "four", "five", "twelve", "twenty"),
}

TOPICS: tuple[Topic, ...] = (
    Topic(
        (
            "Tell me a long story about a lighthouse.",
            "Tell my daughter a story, a long one please.",
        ),
        (
            "The keeper climbed the stairs once more, because the {thing} at the top had gone out in the {weather}.",
            "Down at the {place} a {animal} waited, as it did every evening, for somebody to open the door.",
            "“You are late,” said {name}, and meant the ship, not the keeper.",
            "There were {number} steps left when the wind changed.",
            "In the drawer lay a {thing} that belonged to nobody, or so everybody said.",
            "{name} counted the seconds between the flashes, and lost count, and began again.",
            "By midnight the {weather} had reached the {place}.",
            "Nobody in the village could remember who had built it, but all of them had painted it once.",
            "The {animal} lifted its head, listened, and went back to sleep.",
            "Far out a horn answered, once, then twice.",
            "When {name} opened the {thing}, the light fell on the floor in {number} narrow stripes.",
            "“It is only the {weather},” {name} whispered, although it was not.",
        ),
    ),
    Topic(
        (
            "My {product} keeps losing its connection. What can I do?",
            "How do I reset {product}?",
            "{product} does not turn on since {day}, please help!",
        ),
        (
            "I am sorry to hear that; let us go through it step by step.",
            "\n1. Unplug {product} and wait for {number} minutes, so that it really is without power.",
            "\n2. Check that the cable sits firmly on both sides, and try another socket.",
            "\n3. Hold the reset button with a pin until the light blinks {number} times.",
            "\n4. Open the settings page and look whether the firmware is the latest one.",
            "If the light stays red, the power supply is the likeliest cause.",
            "A crowded radio channel shows in the same way: choose another one, and compare for a day.",
            "Please write down the serial number from the back; the warranty team will ask for it.",
            "Should it happen again before {day}, answer to this message and we replace it.",
        ),
    ),
    Topic(
        (
            "Write a polite email that moves our meeting from {day}.",
            "Decline an invitation, kindly.",
        ),
        (
            "Subject: Our meeting on {day}\n\nDear {name},\n\n",
            "thank you for your invitation, and for the care with which you prepared it.",
            "Unfortunately something has come up that I cannot move.",
            "Would {day} suit you as well, at the same time?",
            "I have attached the notes of last time, so that we do not lose a week.",
            "If it is easier for you, I am glad to come to the {place} instead.",
            "Please excuse the short notice.\n\nWith kind regards,\n{name}",
        ),
    ),
    Topic(
        (
            "Explain this SQL: SELECT tenant, count(*) FROM sessions GROUP BY 1 HAVING count(*) > 10;",
            "Why is my query slow although there is an index?",
        ),
        (
            "The query counts rows for each tenant, and keeps only the groups that have more than ten.",
            "`GROUP BY 1` means the first column of the list; naming it would be easier to read.",
            "`HAVING` is applied after the groups are made, `WHERE` before.",
            "```sql\nEXPLAIN (ANALYZE, BUFFERS)\nSELECT tenant, count(*)\nFROM sessions\nGROUP BY tenant;\n```\n",
            "An index helps only where few rows are wanted; for most of a table a sequential scan is cheaper.",
            "Look at the difference between estimated and actual rows: a factor of {number} is harmless, a factor of a thousand is not.",
            "If the statistics are old, `ANALYZE sessions;` is the first thing to try.",
            "A partial index keeps the part that you ask for small: `WHERE ended_at IS NULL`.",
        ),
    ),
    Topic(
        ("Give me a recipe with lentils for {number} people.", "What can I cook with pumpkin?"),
        (
            "Here is one that takes about forty minutes.",
            "You need 300 g of red lentils, one onion, {number} cloves of garlic, and a tin of tomatoes.",
            "Fry the onion gently until it is golden; that takes longer than one thinks.",
            "Add a spoonful of cumin and let it become fragrant, but not dark.",
            "Rinse the lentils until the water runs clear, then add them with the tomatoes.",
            "Let everything simmer for twenty minutes and stir now and then.",
            "Salt comes last: lentils that are salted early stay hard.",
            "Serve with yoghurt, a little lemon, and bread from the {place}.",
        ),
    ),
    Topic(
        (
            "Was ist der Unterschied zwischen Kündigung und Widerruf?",
            "Erkläre mir den Ablauf einer Rückgabe.",
        ),
        (
            "Ein Widerruf macht den Vertrag rückgängig, eine Kündigung beendet ihn für die Zukunft.",
            "Für den Widerruf haben Sie in der Regel vierzehn Tage Zeit, gerechnet ab der Lieferung.",
            "Gründe müssen Sie keine nennen; eine kurze Nachricht genügt.",
            "Schicken Sie die Ware anschließend innerhalb von vierzehn Tagen zurück.",
            "Das Geld bekommen Sie auf demselben Weg, auf dem Sie bezahlt haben.",
            "Über größere Stücke vereinbaren wir gern einen Termin zur Abholung.",
            "Heben Sie den Einlieferungsbeleg auf, bis die Erstattung bei Ihnen eingegangen ist.",
        ),
    ),
    Topic(
        ("Peux-tu m’expliquer la photosynthèse ?", "Pourquoi le ciel est-il bleu ?"),
        (
            "Bien sûr ! Voici une explication en quelques étapes.",
            "La lumière du soleil contient toutes les couleurs, chacune avec sa longueur d’onde.",
            "Les molécules de l’air diffusent surtout les ondes courtes, c’est-à-dire le bleu.",
            "Dans les feuilles, la chlorophylle absorbe le rouge et le bleu, et renvoie le vert.",
            "L’énergie ainsi captée sert à transformer l’eau et le dioxyde de carbone en sucre.",
            "L’oxygène que nous respirons est, pour ainsi dire, un déchet de cette réaction.",
            "Le soir, la lumière traverse plus d’air : il ne reste que l’orange et le rouge.",
        ),
    ),
    Topic(
        ("京都で二日間、何を見ればいいですか？", "おすすめの本を教えてください。"),
        (
            "二日間でしたら、東山と嵐山に分けて歩くのがおすすめです。",
            "一日目は清水寺から八坂神社まで、坂道をゆっくり下りましょう。",
            "お昼は錦市場で、湯葉や漬物を少しずつ味わえます。",
            "二日目の朝は早起きして、竹林が静かなうちに訪ねてください。",
            "雨の日は美術館もよい選択です🌧️。",
            "帰りの電車は混みますので、席の予約をお忘れなく🚄。",
        ),
    ),
    Topic(
        ("Summarise the attached contract in plain words.", "What does clause 7 mean for us?"),
        (
            "In short: both sides may leave with {number} months’ notice, and nobody pays for leaving.",
            "\n- **Term**: it runs for a year and renews itself unless somebody objects before {day}.",
            "\n- **Price**: fixed for the first year, then it may follow an index, at most once a year.",
            "\n- **Liability**: limited to what was paid in the last twelve months, except for intent.",
            "\n- **Data**: yours remain yours; they are returned or deleted within thirty days.",
            "Clause 7 means that changes count only when they are written down and signed by both.",
            "I would ask about one thing: the notice period begins at receipt, not at dispatch.",
            "This is no legal advice; have somebody who knows your country look at it.",
        ),
    ),
    Topic(
        (
            "Write a Python function that groups events by hour.",
            "How do I read a large CSV in Python?",
        ),
        (
            "A generator keeps memory flat, however large the file is:",
            '\n```python\nimport csv\n\n\ndef rows(path):\n    with open(path, newline="") as file:\n        yield from csv.DictReader(file)\n```\n',
            '`newline=""` matters: the module does its own handling of line ends.',
            "To group by hour, cut the time off and count:",
            '\n```python\nfrom collections import Counter\n\nhours = Counter(row["at"][:13] for row in rows("events.csv"))\nfor hour, count in sorted(hours.items()):\n    print(hour, count)\n```\n',
            "If you need more than counts, `itertools.groupby` works on sorted input only.",
            "For files of several gigabytes a column format saves both time and space.",
            "Test it with a file of {number} lines first; mistakes are cheaper there.",
        ),
    ),
    Topic(
        ("Plan a training week for a 10 km run.", "How do I sleep better?"),
        (
            "A good week has {number} runs, and at least as many days without one.",
            "\n**{day}**: forty minutes, slow enough to talk to {name} the whole time.",
            "\n**Wednesday**: six times one minute fast, with two minutes of walking between.",
            "\n**Saturday**: the long one, an hour at most, on soft ground if there is any.",
            "Raise the distance by a tenth a week, not more, and every fourth week go back a little.",
            "Sleep is where the training happens: a fixed hour of getting up helps more than an early evening.",
            "Leave the phone in the kitchen; the alarm clock of your grandmother is good enough.",
            "If something hurts for longer than {number} days, ask a doctor rather than me.",
        ),
    ),
    Topic(
        (
            "Translate and explain this error: ECONNRESET",
            "What does “connection reset by peer” mean?",
        ),
        (
            "It means that the other side ended the connection at once, without saying goodbye.",
            "Usually the process there has died, or a firewall forgot that it knew you.",
            "Look at the logs of the {number} minutes before it, on both machines.",
            "If it happens always after the same time, a timeout on the way is the likeliest reason.",
            "Retrying is safe only where the request may be made twice.",
            "A health check that only opens the port would not have seen it.",
            "Keep-alive probes every few seconds show the difference between a slow peer and a dead one.",
        ),
    ),
)

SYSTEM_PROMPTS: tuple[str, ...] = (
    "You are the assistant of a shop for household appliances. Be brief, kind and exact.",
    "Answer in the language of the question. Never promise a refund; hand over to a person instead.",
    "You help the employees of the company. Internal names stay internal. Use Markdown sparingly.",
)
