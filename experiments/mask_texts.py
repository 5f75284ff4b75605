"""The texts along which masks are timed: valid in their grammar, for C and SQL a long one too."""

from string import Template

from backend.grammar.sources import examples

_C_HEAD = """\
static const int limit = 4096;
static unsigned long seen[64];
enum state { IDLE, RUNNING = 4, STOPPED };
"""
_C_PART = """\

/* Keeps every $thing in a list, the newest one first. */
struct $thing {
    char $text[$size];
    unsigned long $number;
    double $share;
    struct $thing *next;
};
typedef struct $thing ${thing}_t;

static struct $thing *first_$thing = 0;

// Makes a $thing, or returns 0 if there is no room for it.
static struct $thing *new_$thing(const char *$text, unsigned long $number) {
    struct $thing *made = malloc(sizeof(struct $thing));
    if (made == 0 || $number > 0x$size) {
        fprintf(stderr, "no room for the $thing called %s\\n", $text);
        return 0;
    }
    strncpy(made->$text, $text, $size - 1);
    made->$number = $number;
    made->$share = (double)$number / $size.5e-1;
    made->next = first_$thing;
    first_$thing = made;
    return made;
}

double total_$share(int (*wanted)(const struct $thing *, int), enum state now) {
    double sum = 0.0, most = -1.0;
    int count = 0;
    for (struct $thing *each = first_$thing; each != 0; each = each->next) {
        if (!wanted(each, count) && now != STOPPED) {
            continue;
        }
        sum += each->$share * (1.0 - each->$share);
        most = each->$share > most ? each->$share : most;
        seen[count++ % 64] ^= each->$number << 3 | 1UL;
    }
    switch (count) {
    case 0:
        return 0.0;
    case 1:
        sum = sum + most;
        break;
    default:
        do {
            sum /= 2;
        } while (sum > limit);
    }
    return sum;
}
"""
_SQL_COLUMN = """\
  ${thing}s.$text AS ${thing}_$text,
  CASE WHEN ${thing}s.$number > $size THEN 'over $size' ELSE 'it''s fine' END,
  ROUND(AVG(${thing}s.$share), 2) AS mean_$share"""
_SQL_JOIN = "LEFT JOIN ${thing}s ON ${thing}s.id = people.${thing}_id AND ${thing}s.$number <> 0"
_SQL_TEST = """\
(${thing}s.$text LIKE '%${text}_$size' OR ${thing}s.$share BETWEEN 0.25 AND $size)
  AND people.${thing}_id IN (SELECT id FROM kept WHERE $number IS NOT NULL)"""
_PARTS = (
    ("parcel", "label", "weight", "postage", 48),
    ("voyage", "harbour", "distance", "fuel_share", 120),
    ("student", "surname", "year2", "average", 64),
    ("sensor", "room_name", "reading", "humidity", 32),
    ("recipe", "title", "minutes", "salt_ratio", 200),
    ("account", "owner", "cents", "interest_rate", 80),
    ("planet", "discoverer", "moons", "albedo", 24),
)


def long_c() -> str:
    """A C file of more than 300 lines."""
    return _C_HEAD + "".join(_filled(_C_PART))


def long_sql() -> str:
    """One SELECT of more than 40 lines."""
    columns, joins, tests = map(_filled, (_SQL_COLUMN, _SQL_JOIN, _SQL_TEST))
    return "\n".join(
        [
            "SELECT people.name,",
            ",\n".join(columns),
            "FROM people",
            *joins,
            "WHERE " + "\n  AND ".join(tests),
            "GROUP BY people.name HAVING COUNT(*) > 3",
            "ORDER BY people.name DESC LIMIT 50;",
        ]
    )


def _filled(template: str) -> list[str]:
    """The template once for each of the parts."""
    keys = ("thing", "text", "number", "share", "size")
    return [Template(template).substitute(**dict(zip(keys, part, strict=True))) for part in _PARTS]


def texts_of(name: str) -> tuple[str, ...]:
    """What a shipped grammar is timed over: its accept examples, and a long text for C and SQL."""
    long = {"c": long_c, "sql": long_sql}
    texts = (*examples(name).accept, *([long[name]()] if name in long else []))
    return tuple(text for text in texts if text)
