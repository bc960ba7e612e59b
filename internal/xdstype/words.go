package xdstype

// The words that people use for types: in configurations and on command lines.

import (
	"fmt"
	"strings"
)

// Words lists the words that Parse knows, for help and errors.
func Words() string {
	var all []string
	for _, t := range table {
		if t.Word != "" {
			all = append(all, t.Word+"|"+t.Abbreviation)
		}
	}
	return strings.Join(all, ", ")
}

// Parse returns the type URL for a word ("cluster", "cds"), a message name
// ("envoy.config.cluster.v3.Cluster") or a type URL.
func Parse(s string) (string, error) {
	if t := withWord(strings.ToLower(s)); t != nil && s != "" {
		return t.url, nil
	}
	switch {
	case strings.Contains(s, "/"):
		return s, nil
	case strings.Contains(s, "."):
		return Prefix + s, nil
	}
	return "", fmt.Errorf("unknown type %q (want one of %s, or a type URL)", s, Words())
}

// Word returns the word for a type URL, or the name of its message if there is no
// word for it.
func Word(url string) string {
	if t := Of(url); t.Word != "" && t.url == url {
		return t.Word
	}
	return Message(url)
}

// Label returns the label of a type in metrics: the name of its message, or "other" for a type that is not in
// the table, because clients can make up type URLs.
func Label(url string) string {
	if Of(url) == Other {
		return "other"
	}
	return Message(url)
}

// Message returns the name of a type URL's message, which is the resource type in xdstp names.
func Message(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
