"""Words for the open slots of Home Assistant's templates; the names come from no real household."""

# Most names contain no room: the templates put "{area}" next to "{name}".
NAMES: dict[str, tuple[str, ...]] = {
    "binary_sensor": (
        "back door", "bay window", "cat flap", "fridge door", "letter box", "motion sensor",
        "parking space", "patio door", "presence sensor", "skylight", "window sensor",
    ),
    "button": ("doorbell", "goodnight", "panic", "restart router", "ring my phone", "water plants"),
    "climate": (
        "air conditioner", "air conditioning", "boiler", "floor heating", "heat pump", "heater", "radiator",
        "thermostat", "towel rail",
    ),
    "cover": (
        "awning", "blackout blinds", "front gate", "garage door", "left curtain", "pergola roof",
        "right curtain", "roller shutter", "roof window", "sliding door", "velvet curtains",
        "venetian blinds",
    ),
    "fan": (
        "air purifier", "ceiling fan", "desk fan", "exhaust fan", "extractor", "pedestal fan", "tower fan",
        "ventilation", "window fan",
    ),
    "input_boolean": (
        "away mode", "do not disturb", "guest mode", "night mode", "party mode", "vacation mode",
    ),
    "input_button": ("arrival", "bedtime", "leaving home", "snooze"),
    "light": (
        "bedside lamp", "bookshelf", "ceiling light", "chandelier", "christmas tree", "desk lamp",
        "fairy lights", "floor lamp", "lava lamp", "led strip", "mirror light", "night light", "pendant",
        "reading lamp", "salt lamp", "spotlights", "sunrise lamp", "wall sconce",
    ),
    "lock": ("back gate", "bike shed", "cellar door", "front door", "gun safe", "main entrance", "side door"),
    "media_player": (
        "apple tv", "bluetooth speaker", "chromecast", "home theater", "jukebox", "projector", "radio",
        "record player", "smart display", "sound bar", "speaker", "stereo", "television", "tv",
    ),
    "person": ("alice", "bob", "charlotte", "daniel", "emma", "grandma", "jack", "maria", "oliver", "sophie"),
    "scene": (
        "bright morning", "candlelight dinner", "cozy evening", "deep focus", "movie night", "rainy sunday",
        "relax", "romantic", "sunset", "tropical",
    ),
    "script": (
        "bedtime routine", "feed the cat", "good morning", "leaving routine", "morning briefing",
        "water the garden", "welcome home",
    ),
    "sensor": (
        "battery level", "co2 level", "electricity price", "energy meter", "humidity",
        "outside temperature", "power usage", "rain gauge", "solar output", "washing machine status",
        "water meter", "wind speed",
    ),
    "switch": (
        "aquarium pump", "coffee maker", "dehumidifier", "dishwasher", "electric blanket",
        "espresso machine", "fountain", "kettle", "power strip", "rice cooker", "slow cooker", "smart plug",
        "sprinkler", "toaster",
    ),
    "valve": (
        "drip irrigation", "gas valve", "main water valve", "pool valve", "radiator valve", "rain barrel",
    ),
}  # fmt: skip

WORDS: dict[str, tuple[str, ...]] = {
    "area": (
        "attic", "balcony", "basement", "bathroom", "bedroom", "conservatory", "dining room", "entrance",
        "garage", "garden", "guest room", "gym", "hallway", "home office", "kids room", "kitchen",
        "laundry room", "library", "living room", "master bedroom", "nursery", "pantry", "playroom",
        "porch", "study", "sunroom", "terrace", "utility room", "workshop",
    ),
    "floor": (
        "downstairs", "first floor", "ground floor", "lower floor", "main floor", "second floor",
        "third floor", "top floor", "upper floor", "upstairs",
    ),
    "search_query": (
        "abbey road", "beethoven", "bohemian rhapsody", "classical guitar", "daft punk", "dinner jazz",
        "hotel california", "jurassic park", "kind of blue", "lo-fi beats", "miles davis", "nina simone",
        "ocean sounds", "planet earth", "purple rain", "queen", "road trip mix", "sherlock", "star wars",
        "the beatles", "the daily", "the office", "thriller", "vivaldi", "workout hits",
    ),
    "timer_command": (
        "close the curtains", "lock the front door", "open the garage door", "pause the music",
        "play some jazz", "remind me to call mom", "start the dishwasher", "start the vacuum",
        "stop the sprinkler", "turn off the heater", "turn off the lights", "turn off the oven",
        "turn on the coffee maker", "turn on the porch light", "turn the tv off",
    ),
    "timer_name": (
        "bread", "cake", "chicken", "cookies", "eggs", "homework", "lasagna", "laundry", "meditation",
        "nap", "oven", "parking meter", "pasta", "pizza", "potatoes", "rice", "roast", "screen time", "tea",
        "workout",
    ),
    "zone": (
        "church", "gym", "home", "library", "office", "park", "school", "supermarket", "train station",
        "work",
    ),
}  # fmt: skip
