package page

// The functions that templates call.

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

var functions = template.FuncMap{
	"asset":     asset,
	"href":      href,
	"changed":   changed,
	"time":      stamp,
	"since":     since,
	"plural":    plural,
	"clip":      clip,
	"sentence":  func(s string) string { return clipTo(s, 400) },
	"state":     stateOf,
	"lines":     func(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") },
	"diffclass": diffClass,
	"dict":      dict,
	"was":       func(n int) string { return map[bool]string{true: "was", false: "were"}[n == 1] },
	"does":      func(n int) string { return map[bool]string{true: "does", false: "do"}[n == 1] },
	"version":   version,
	"seconds":   seconds,
	"utc":       utc,
	"clock":     func(t time.Time) string { return t.UTC().Format(time.TimeOnly) },
}

// asset returns the URL of a static file, with a hash of its content.
func asset(name string) (string, error) {
	if known, is := assets.Load(name); is {
		return known.(string), nil
	}
	text, err := static.ReadFile("static/" + name)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	at := "/ui/static/" + name + "?" + hex.EncodeToString(sum[:4])
	assets.Store(name, at)
	return at, nil
}

// assets caches the URLs that asset has returned, by name.
var assets sync.Map

// href returns the URL of a page with a query, given as keys and values or as the whole query.
func href(path string, query ...any) (template.URL, error) {
	values := url.Values{}
	for i := 0; i < len(query); i += 2 {
		if i+1 == len(query) {
			return template.URL(path + "?" + fmt.Sprint(query[i])), nil //nolint:gosec // it comes from url.Values.Encode
		}
		if text := fmt.Sprint(query[i+1]); text != "" {
			values.Set(fmt.Sprint(query[i]), text)
		}
	}
	if len(values) == 0 {
		return template.URL(path), nil //nolint:gosec // a constant of a template
	}
	return template.URL(path + "?" + values.Encode()), nil //nolint:gosec // it is encoded
}

// changed returns a query with another value of a key.
func changed(q url.Values, key string, value any) string {
	other := url.Values{}
	for k, v := range q {
		other[k] = v
	}
	other.Set(key, fmt.Sprint(value))
	return other.Encode()
}

// utc returns a moment in the form of RFC 3339, for machines.
func utc(t any) string {
	at, ok := moment(t)
	if !ok {
		return ""
	}
	return at.UTC().Format("2006-01-02T15:04:05Z")
}

// stamp returns a moment for people. It is in UTC, so that operators in several places can compare it
// with each other's logs.
func stamp(t any) string {
	at, ok := moment(t)
	if !ok {
		return ""
	}
	at = at.UTC()
	if time.Since(at) > 20*time.Hour || time.Until(at) > 20*time.Hour {
		return at.Format("2006-01-02 15:04:05 UTC")
	}
	return at.Format("15:04:05 UTC")
}

// since returns how long ago a moment was, with few digits, so that a live page does not change each
// second.
func since(t any) string {
	at, ok := moment(t)
	if !ok {
		return ""
	}
	d, when := time.Since(at), " ago"
	if d < 0 {
		d, when = -d, ""
	}
	switch {
	case d < 10*time.Second:
		return plural(int(d.Seconds()), "second") + when
	case d < time.Minute:
		return fmt.Sprintf("%d seconds%s", int(d.Seconds())/10*10, when)
	case d < time.Hour:
		return plural(int(d.Minutes()), "minute") + when
	case d < 48*time.Hour:
		return plural(int(d.Hours()), "hour") + when
	}
	return plural(int(d.Hours()/24), "day") + when
}

func moment(t any) (time.Time, bool) {
	switch t := t.(type) {
	case time.Time:
		return t, !t.IsZero()
	case *time.Time:
		if t != nil {
			return *t, !t.IsZero()
		}
	}
	return time.Time{}, false
}

func plural(n any, word string) string {
	if fmt.Sprint(n) == "1" {
		return "1 " + word
	}
	if strings.HasSuffix(word, "y") {
		return fmt.Sprintf("%v %sies", n, strings.TrimSuffix(word, "y"))
	}
	return fmt.Sprintf("%v %ss", n, word)
}

// clip shortens a name in a table. The page about the resource has the full name.
func clip(s string) string { return clipTo(s, 120) }

func clipTo(s string, most int) string {
	runes := 0
	for i := range s {
		if runes++; runes > most {
			return s[:i] + "…"
		}
	}
	return s
}

// version shortens a version for a table.
func version(s string) string {
	const most = 24
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// seconds returns a duration with two digits, or "–" if it is not known.
func seconds(s float64) string {
	digits := func(v float64, unit string) string {
		return strconv.FormatFloat(roundTo(v, 2), 'f', -1, 64) + " " + unit
	}
	switch {
	case s == 0:
		return "–"
	case s < 0.001:
		return digits(s*1e6, "µs")
	case s < 1:
		return digits(s*1e3, "ms")
	case s < 120:
		return digits(s, "s")
	}
	return digits(s/60, "min")
}

// roundTo rounds to a number of significant digits. It rounds larger numbers to a whole number.
func roundTo(v float64, digits int) float64 {
	if v >= math.Pow10(digits) {
		return math.Round(v)
	}
	text := strconv.FormatFloat(v, 'g', digits, 64)
	v, _ = strconv.ParseFloat(text, 64) // it is one
	return v
}

// badge is a state as the page shows it: in words, and with a sign, so that its colour is not all that
// distinguishes it.
type badge struct{ Kind, Sign, Text string }

// stateOf returns a badge of a kind: good, bad, warn or plain.
func stateOf(kind, text string) badge {
	return badge{kind, map[string]string{"good": "✓", "bad": "✕", "warn": "!", "plain": "·"}[kind], text}
}

// dict returns a map for a template with several arguments.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// diffClass returns the class of a line of a difference.
func diffClass(line string) string {
	switch {
	case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"), strings.HasPrefix(line, "@@"):
		return "at"
	case strings.HasPrefix(line, "+"):
		return "add"
	case strings.HasPrefix(line, "-"):
		return "del"
	}
	return "same"
}
