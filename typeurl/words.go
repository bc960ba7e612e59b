package typeurl

// The words that people use for types: in configurations and on command lines.

import (
	"fmt"
	"slices"
	"strings"
)

// words has the words for each type, the one that people are told first.
var words = []struct {
	url   string
	words []string
}{
	{ListenerV3, []string{"listener", "lds"}},
	{RouteV3, []string{"route", "rds"}},
	{ScopedRouteV3, []string{"scoped-route", "srds"}},
	{VirtualHostV3, []string{"virtual-host", "vhds"}},
	{ClusterV3, []string{"cluster", "cds"}},
	{EndpointsV3, []string{"endpoint", "eds"}},
	{SecretV3, []string{"secret", "sds"}},
	{RuntimeV3, []string{"runtime", "rtds"}},
	{ExtensionConfigV3, []string{"extension", "ecds"}},
}

// Words lists the words that Parse knows, for help and errors.
func Words() string {
	var all []string
	for _, t := range words {
		all = append(all, strings.Join(t.words, "|"))
	}
	return strings.Join(all, ", ")
}

// Parse gives the type URL for a word ("cluster", "cds"), a message name
// ("envoy.config.cluster.v3.Cluster") or a type URL.
func Parse(s string) (string, error) {
	for _, t := range words {
		if slices.Contains(t.words, strings.ToLower(s)) {
			return t.url, nil
		}
	}
	switch {
	case strings.Contains(s, "/"):
		return s, nil
	case strings.Contains(s, "."):
		return Prefix + s, nil
	}
	return "", fmt.Errorf("unknown type %q (want one of %s, or a type URL)", s, Words())
}

// Word is the word for a type URL, or the message's name where there is none.
func Word(url string) string {
	for _, t := range words {
		if url == t.url {
			return t.words[0]
		}
	}
	return Short(url)
}

// Short is the part of a type URL that xdstp names have.
func Short(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }
