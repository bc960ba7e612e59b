package cache

import (
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Params are the dynamic parameters of a client's request: they choose between the
// variants of one name. xDS: TP2, discovery.proto's ResourceLocator.
type Params map[string]string

// String returns the parameters in the form of Scope.Params: sorted, with all characters
// escaped that are neither letters nor digits. It is empty if there are none.
func (p Params) String() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(p)) {
		if b.Len() > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(key))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(p[key]))
	}
	return b.String()
}

// ParseParams parses what [Params.String] returns.
func ParseParams(s string) Params {
	if s == "" {
		return nil
	}
	p := Params{}
	for pair := range strings.SplitSeq(s, "&") {
		key, value, _ := strings.Cut(pair, "=")
		key, err := url.QueryUnescape(key)
		value, err2 := url.QueryUnescape(value)
		if err == nil && err2 == nil {
			p[key] = value
		}
	}
	return p
}
