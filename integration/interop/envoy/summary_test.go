package envoy

// The state of an Envoy as text, so that two Envoys can be compared.

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// resources returns the resources of an Envoy with their contents, and in which state they are, a line for each. With
// versions, the lines have the versions of the resources.
func (e *envoy) resources(versions bool) ([]string, error) {
	dump, err := e.page("/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	var lines []string
	configs, _ := dump["configs"].([]any)
	for _, c := range configs {
		section, _ := c.(object)
		kind, _ := section["@type"].(string)
		kind = shortType(kind)
		if kind == "BootstrapConfigDump" {
			continue
		}
		for _, state := range sorted(section) {
			if !strings.HasPrefix(state, "dynamic") && state != "ecds_filters" { // static ones are the bootstrap's
				continue
			}
			entries, _ := section[state].([]any)
			for _, entry := range entries {
				lines = append(lines, describe(state, entry, versions)...)
			}
		}
	}
	return lines, nil
}

// summary returns the state of an Envoy, a line for each thing: resources, hosts, addresses, certificates, and what was
// refused. With versions, the lines have the versions of the resources.
func (e *envoy) summary(versions bool) ([]string, error) {
	lines, err := e.resources(versions)
	if err != nil {
		return nil, err
	}
	hosts, err := e.hosts()
	if err != nil {
		return nil, err
	}
	lines = append(lines, hosts...)
	listeners, err := e.get("/listeners")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(listeners)) {
		lines = append(lines, "listening "+strings.TrimSpace(line))
	}
	certificates, err := e.certificates()
	if err != nil {
		return nil, err
	}
	lines = append(lines, certificates...)
	runtime, err := e.page("/runtime")
	if err != nil {
		return nil, err
	}
	entries, _ := runtime["entries"].(object)
	for _, key := range sorted(entries) {
		entry, _ := entries[key].(object)
		lines = append(lines, fmt.Sprintf("runtime %s = %v", key, entry["final_value"]))
	}
	rejected, err := e.stats(`\.update_rejected$`)
	if err != nil {
		return nil, err
	}
	for _, name := range sorted(rejected) {
		if rejected[name] > 0 {
			lines = append(lines, name+" > 0")
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// describe describes an entry of the configuration dump. An entry of a Listener has several states.
func describe(state string, entry any, versions bool) []string {
	o, _ := entry.(object)
	name := nameOf(o)
	var lines []string
	draining := false // how long a Listener drains is Envoy's affair
	for _, key := range sorted(o) {
		inner, isObject := o[key].(object)
		switch {
		case key == "draining_state" && isObject:
			draining = true
		case strings.HasSuffix(key, "_state") && isObject: // of a Listener; or why a resource was refused
			lines = append(lines, line(state+" "+key, name, inner, versions))
		}
	}
	if len(lines) == 0 && !draining {
		lines = append(lines, line(state, name, o, versions))
	}
	return lines
}

// nameOf returns the name of an entry of the configuration dump, or that of the resource in it.
func nameOf(entry object) string {
	for _, key := range []string{"name", "cluster_name"} {
		if name, ok := entry[key].(string); ok {
			return name
		}
	}
	for _, key := range sorted(entry) {
		if inner, ok := entry[key].(object); ok {
			if name := nameOf(inner); name != "" {
				return name
			}
		}
	}
	return ""
}

// line describes a resource in one state.
func line(state, name string, o object, versions bool) string {
	content := object{}
	for key, value := range o {
		switch key {
		case "last_updated", "client_status", "name", "version_info", "last_update_attempt":
		default:
			content[key] = value
		}
	}
	text, _ := json.Marshal(content) // with sorted keys
	version := ""
	if v, ok := o["version_info"].(string); ok && versions {
		version = " version " + v
	}
	return fmt.Sprintf("%s %s%s: %s", state, name, version, text)
}

// hosts returns the hosts of all clusters that are not the bootstrap's.
func (e *envoy) hosts() ([]string, error) {
	page, err := e.page("/clusters?format=json")
	if err != nil {
		return nil, err
	}
	var lines []string
	clusters, _ := page["cluster_statuses"].([]any)
	for _, c := range clusters {
		cluster, _ := c.(object)
		if cluster["added_via_api"] != true {
			continue
		}
		var hosts []string
		statuses, _ := cluster["host_statuses"].([]any)
		for _, h := range statuses {
			host, _ := h.(object)
			address, _ := json.Marshal(host["address"])
			health, _ := json.Marshal(host["health_status"])
			hosts = append(hosts, fmt.Sprintf("%s %v %s", address, host["weight"], health))
		}
		slices.Sort(hosts)
		lines = append(lines, fmt.Sprintf("hosts of %v: %s", cluster["name"], strings.Join(hosts, ", ")))
	}
	return lines, nil
}

// certificates returns the serial numbers of the certificates that are in use.
func (e *envoy) certificates() ([]string, error) {
	page, err := e.page("/certs")
	if err != nil {
		return nil, err
	}
	var lines []string
	all, _ := page["certificates"].([]any)
	for _, c := range all {
		certificate, _ := c.(object)
		for _, part := range []string{"ca_cert", "cert_chain"} {
			chain, _ := certificate[part].([]any)
			for _, one := range chain {
				details, _ := one.(object)
				lines = append(lines, fmt.Sprintf("certificate %s %v", part, details["serial_number"]))
			}
		}
	}
	return lines, nil
}

// difference returns the lines that only one of two summaries has: those of a with "-", those of b with "+".
func difference(a, b []string) []string {
	var lines []string
	count := map[string]int{}
	for _, l := range b {
		count[l]++
	}
	for _, l := range a {
		if count[l] > 0 {
			count[l]--
		} else {
			lines = append(lines, "- "+l)
		}
	}
	for _, l := range b {
		if count[l] > 0 {
			count[l]--
			lines = append(lines, "+ "+l)
		}
	}
	return lines
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

var versionInLine = regexp.MustCompile(`^(dynamic.*?|ecds_filters.*?) version [^:]*: `)

// withoutVersions returns a summary without the versions of resources.
func withoutVersions(summary []string) []string {
	lines := make([]string, len(summary))
	for i, line := range summary {
		lines[i] = versionInLine.ReplaceAllString(line, "$1: ")
	}
	return lines
}
