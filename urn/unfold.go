package urn

// Directives that a client has folded into the id. Envoy parses every name that it subscribes
// to as a URN, so for xdstp://a/T/foo#alt=xdstp://b/T/bar it requests
// xdstp://a/T/foo%23alt=xdstp%3A//b/T/bar.

import (
	"slices"
	"strings"
)

const (
	// collectionSuffix ends the types of list collections. TP1: "List".
	collectionSuffix = "Collection"
	foldedHash       = "%23"
	// maxUnfolded bounds the number of nested alternatives.
	maxUnfolded = 8
)

// Unfold parses the name of a resource as a client subscribes to it: with directives, or with
// directives folded into it. Text that looks like directives counts as directives only if the
// result makes sense: an alternative has the same type, and an entry belongs to a list collection.
// Otherwise the text is part of the name.
//
// How Envoy folds directives, and where context parameters end up:
//
//   - If there was no ? before the #, the id contains the # and everything after it. The
//     parameters then belong to the last alternative. Parameters that a client adds to all
//     names (TP1: "Context parameters") belong to all URLs.
//   - Otherwise the value of a parameter contains the directives, with the alternative's own
//     parameters up to the first &. Other parameters belong to the primary.
func Unfold(name string) (URL, error) { return unfold(name, 0) }

// Fold returns the canonical spelling of a name with its directives folded into it, as Envoy requests it. For a name
// without directives it is the canonical name.
func Fold(name string) (string, error) {
	key, err := KeyOf(strings.ReplaceAll(name, "#", foldedHash))
	return key.Name, err
}

func unfold(name string, depth int) (URL, error) {
	u, err := ParseURL(name)
	if err != nil || !strings.Contains(name, foldedHash) || depth > maxUnfolded {
		return u, err
	}
	p, _ := split(name)
	if p.hasFragment {
		return u, nil
	}
	if before, folded, ok := cutFolded(p.id.text); ok {
		if unfolded, ok := p.unfoldID(before, folded, depth); ok {
			return unfolded, nil
		}
	}
	all := pairs(p.query.text)
	for i, pair := range all {
		if before, folded, ok := cutFolded(pair); ok {
			all[i] = before
			if unfolded, ok := p.unfold(p.id.text, all, folded, nil, depth); ok {
				return unfolded, nil
			}
			break
		}
	}
	return u, nil
}

// unfoldID returns the URL of a name with directives in its id.
func (p *parts) unfoldID(id, folded string, depth int) (URL, bool) {
	all := pairs(p.query.text)
	if alt, _ := cutDirectives(decoded(folded)); alt == "" {
		return p.unfold(id, all, folded, nil, depth)
	}
	own, rest := added(all)
	return p.unfold(id, own, folded, decodedAll(rest), depth)
}

// unfold returns the URL with the authority and type of p, and with an id, the parameters own, and
// folded directives. rest are additional parameters of the last alternative.
func (p *parts) unfold(id string, own []string, folded string, rest []string, depth int) (URL, bool) {
	alt, entry := cutDirectives(decoded(folded))
	if alt == "" && entry == "" {
		return URL{}, false
	}
	name := prefix + p.authority.text + "/" + p.typ.text + "/" + id
	if len(own) > 0 {
		name += "?" + strings.Join(own, "&")
	}
	typ := p.typ.text
	if entry != "" {
		var isList bool
		if typ, isList = strings.CutSuffix(typ, collectionSuffix); !isList {
			return URL{}, false
		}
	}
	if alt == "" {
		u, err := ParseURL(name + "#" + entryDirective + "=" + entry)
		return u, err == nil
	}
	forAll, _ := added(own)
	alt, ok := spread(alt, forAll, rest, depth)
	if !ok {
		return URL{}, false
	}
	second, err := unfold(alt, depth+1)
	if err != nil || second.memberType() != decoded(typ) {
		return URL{}, false
	}
	name += "#" + altDirective + "=" + string(escape(nil, second.String(), inDirective))
	if entry != "" {
		name += "," + entryDirective + "=" + entry
	}
	u, err := ParseURL(name)
	return u, err == nil
}

// memberType returns the type of the resource that the URL locates. For an entry, it is the type of
// the collection's members.
func (u URL) memberType() string {
	if _, ok := u.Entry(); ok {
		return strings.TrimSuffix(u.key.Type, collectionSuffix)
	}
	return u.key.Type
}

// spread adds the parameters all to a URL and all its alternatives, and the parameters last to the
// last alternative. The latter were escaped once for each level of nesting.
func spread(url string, all, last []string, depth int) (string, bool) {
	u, err := ParseURL(url)
	if err != nil || depth > maxUnfolded {
		return "", false
	}
	alt, hasAlt := u.Alt()
	if !hasAlt {
		all = append(slices.Clone(all), last...)
	}
	name, sep := addParams(u.key.Name, all), "#"
	if hasAlt {
		inner, ok := spread(alt.String(), all, decodedAll(last), depth+1)
		if !ok {
			return "", false
		}
		name += sep + altDirective + "=" + string(escape(nil, inner, inDirective))
		sep = ","
	}
	if entry, ok := u.Entry(); ok {
		name += sep + entryDirective + "=" + entry
	}
	return name, true
}

// addParams adds those parameters to a name that it lacks.
func addParams(name string, more []string) string {
	name, query, _ := strings.Cut(name, "?")
	all := pairs(query)
	for _, pair := range more {
		key, _, _ := strings.Cut(pair, "=")
		if !slices.ContainsFunc(all, func(has string) bool {
			hasKey, _, _ := strings.Cut(has, "=")
			return compareDecoded(hasKey, key) == 0
		}) {
			all = append(all, pair)
		}
	}
	if len(all) == 0 {
		return name
	}
	return name + "?" + strings.Join(all, "&")
}

func decodedAll(pairs []string) []string {
	out := make([]string, len(pairs))
	for i, pair := range pairs {
		out[i] = decoded(pair)
	}
	return out
}

// cutFolded splits a text at the first escaped # that begins directives.
func cutFolded(text string) (before, directives string, ok bool) {
	for at := 0; ; {
		i := strings.Index(text[at:], foldedHash)
		if i < 0 {
			return "", "", false
		}
		before, at = text[:at+i], at+i+len(foldedHash)
		if after := text[at:]; begins(after, altDirective+"=") || begins(after, entryDirective+"=") {
			return before, after, true
		}
	}
}

// begins reports whether the decoded form of a text begins with a word.
func begins(text, word string) bool {
	for i := range len(word) {
		if text == "" {
			return false
		}
		b, width := next(text)
		if width == 0 || b != word[i] {
			return false
		}
		text = text[width:]
	}
	return true
}

// cutDirectives returns the values of directives whose escapes have been decoded. A comma within an
// alternative then looks like one between directives: an entry after an alternative that has
// directives counts as one of the alternative's directives.
func cutDirectives(text string) (alt, entry string) {
	if rest, ok := strings.CutPrefix(text, entryDirective+"="); ok {
		entry, text, ok = strings.Cut(rest, ",")
		if !ok {
			return "", entry
		}
	}
	alt, ok := strings.CutPrefix(text, altDirective+"=")
	if !ok {
		return "", "" // no directive
	}
	const andEntry = "," + entryDirective + "="
	if at := strings.LastIndex(alt, andEntry); at >= 0 && entry == "" && !strings.Contains(alt, "#") {
		alt, entry = alt[:at], alt[at+len(andEntry):]
	}
	return alt, entry
}

// pairs returns the context parameters of a query, as spelled.
func pairs(query string) []string {
	if query == "" {
		return nil
	}
	return strings.Split(query, "&")
}

// added splits parameters into those that clients add to all names, and the others.
// TP1: "Context parameters".
func added(pairs []string) (toAll, rest []string) {
	for _, pair := range pairs {
		if slices.ContainsFunc(addedPrefixes, func(p string) bool { return strings.HasPrefix(pair, p) }) {
			toAll = append(toAll, pair)
		} else {
			rest = append(rest, pair)
		}
	}
	return toAll, rest
}

var addedPrefixes = []string{"xds.node.", "xds.client_feature.", "xds.client_features.", "xds.resource."}
