package configs

// This file checks what values mean: addresses, names, and references between keys.

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checker collects the errors of a configuration whose types are right.
type checker struct {
	source
	unusable map[string]bool // see shape.unusable
	errs     Errors
}

func (c *Config) check(unusable map[string]bool) Errors {
	k := &checker{source: c.source, unusable: unusable}
	if n := len(c.Node.ID); n > maxNodeID {
		k.fail("node.id", "has %d bytes (want at most %d)", n, maxNodeID)
	}
	k.listeners(c)
	k.authorities(c.Authorities)
	k.rules(c)
	k.views(c)
	k.rights(c)
	k.store(c.Store)
	k.atMost("drain.delay", c.Drain.Delay, mostDrain)
	k.atMost("drain.time", c.Drain.Time, mostDrain)
	return k.errs
}

// maxNodeID is the longest id that other relays accept, in bytes.
const maxNodeID = 256

func (k *checker) fail(path, format string, args ...any) {
	if !k.isUnusable(path) {
		k.errs = append(k.errs, k.errorf(path, format, args...))
	}
}

// isUnusable reports whether there already is an error for path, or for a map around it.
func (k *checker) isUnusable(path string) bool {
	for ; path != ""; path = parent(path) {
		if k.unusable[path] {
			return true
		}
	}
	return false
}

func (k *checker) listeners(c *Config) {
	if len(c.Listeners) == 0 {
		k.fail("listeners", "missing (want at least one, such as - address: 127.0.0.1:18000)")
	}
	taken := map[string]string{} // paths by address
	for i := range c.Listeners {
		l, path := &c.Listeners[i], fmt.Sprintf("listeners[%d]", i)
		k.listenAddress(path+".address", l.Address, taken)
		k.socketMode(path, l.Address, l.Mode, defaultListenerMode)
		if err := l.compileAdmit(); err != nil {
			k.fail(path+".admit", "%w", err)
		}
		if err := l.compileRelays(); err != nil {
			k.fail(path+".relays", "%w", err)
		}
		k.keepalive(path+".keepalive", l.Keepalive, time.Second)
		k.atMost(path+".max_connection_age", l.MaxConnectionAge, mostAge)
		if l.MaxConnectionAge > 0 && l.MaxConnectionAge < leastAge {
			k.fail(path+".max_connection_age", "%s is too short: clients would do nothing but connect (want %s or more, or 0s for no limit)", l.MaxConnectionAge, leastAge)
		}
		if l.Limits.MemoryStreams < l.Limits.MemoryNames {
			k.fail(path+".limits.memory_streams", "%v is less than limits.memory_names, which is %v (want at least as much: names are refused before streams end)", l.Limits.MemoryStreams, l.Limits.MemoryNames)
		}
		k.protocolKeys(path, reflect.ValueOf(l).Elem(), string(l.Protocol))
		if l.Protocol == ListenerGRPC {
			k.windows(path+".windows", l.Windows)
			k.buffer(path+".buffers.read", l.Buffers.Read)
			k.buffer(path+".buffers.write", l.Buffers.Write)
		}
		if l.ProxyProtocol != nil {
			k.proxyProtocol(path+".proxy_protocol", l.Address, l.ProxyProtocol)
		}
		if l.JWT != nil {
			k.jwt(path+".jwt", l.JWT)
		}
		if l.TLS != nil {
			k.listenerTLS(path+".tls", l.TLS)
		}
	}
	if k.has("admin") {
		k.admin(&c.Admin, taken)
	}
	k.fleet(c.Fleet, taken)
}

// protocolKeys refuses keys of the map at path that have no meaning with the protocol of its listener or
// server, except what is false. v is the map's value.
func (k *checker) protocolKeys(path string, v reflect.Value, protocol string) {
	t := v.Type()
	for _, key := range keysOf(t) {
		field, _ := fieldOf(t, key)
		at, value := path+"."+key, v.FieldByIndex(field.Index)
		switch {
		case !k.has(at) || field.Type.Kind() == reflect.Bool && !value.Bool():
		case !goesWith(field, protocol):
			with := strings.Split(field.Tag.Get("with"), ",")
			k.fail(at, "is for %s, and this is %s (want no such key, or protocol: %s)", protocolsOf(with), protocol, with[0])
		case isMap(field.Type):
			k.protocolKeys(at, value, protocol)
		}
	}
}

// protocolsOf names the protocols that a key has a meaning with.
func protocolsOf(with []string) string {
	switch {
	case with[0] == string(ProtocolREST):
		return "protocol rest"
	case slices.Contains(with, string(ProtocolSotW)), with[0] == string(ListenerGRPC):
		return "gRPC"
	}
	return "protocols " + strings.Join(with, " and ")
}

func (k *checker) atMost(path string, d, most time.Duration) {
	if d > most {
		k.fail(path, "%s is too long (want at most %s)", d, most)
	}
}

func (k *checker) present(path, value, want string) bool {
	if value == "" {
		k.fail(path, "missing (%s)", want)
	}
	return value != ""
}

// listenAddress checks the address of a listener, and reports whether it is valid. taken has the
// addresses of earlier listeners, and this one after the call.
func (k *checker) listenAddress(path, address string, taken map[string]string) bool {
	if !k.present(path, address, "want host:port or unix:/path") {
		return false
	}
	var err error
	another := "port"
	if _, unix := UnixPath(address); unix {
		another = "path"
		err = checkUnixPath(address)
	} else {
		err = checkAddress(address, true)
	}
	if err != nil {
		k.fail(path, "%w", err)
		return false
	}
	if first, ok := taken[address]; ok && !strings.HasSuffix(address, ":0") {
		k.fail(path, "%q is already %s (want another %s)", address, first, another)
		return false
	}
	taken[address] = path
	return true
}

// checkAddress returns an error if address is not host:port. For a listener, the host may be
// empty and the port 0.
func checkAddress(address string, listen bool) error {
	if strings.Contains(address, "://") {
		return fmt.Errorf("%q has a scheme (want host:port)", address)
	}
	host, port, err := net.SplitHostPort(address)
	var wrong *net.AddrError
	if errors.As(err, &wrong) {
		switch wrong.Err {
		case "missing port in address":
			return fmt.Errorf("%q has no port (want host:port)", address)
		case "too many colons in address":
			return fmt.Errorf("%q has too many colons (want host:port, with an IPv6 address in brackets: [::1]:18000)", address)
		default:
			return fmt.Errorf("%q is not an address (want host:port)", address)
		}
	}
	lowest := 1
	if listen {
		lowest = 0
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case host == "" && !listen:
		return fmt.Errorf("%q has no host (want host:port)", address)
	case strings.ContainsFunc(host, notInHost):
		return fmt.Errorf("%q is not a host in %q (want host:port)", host, address)
	case err != nil || int(n) < lowest:
		return fmt.Errorf("%q is not a port in %q (want %d to 65535)", port, address, lowest)
	}
	return nil
}

func notInHost(r rune) bool {
	return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\@?#"'`, r)
}

// keepalive refuses times that gRPC would silently raise to shortest.
func (k *checker) keepalive(path string, v Keepalive, shortest time.Duration) {
	if v.Time < shortest {
		k.fail(path+".time", "%s is too short (want %s or more)", v.Time, shortest)
	}
}

// windows refuses sizes that gRPC would silently raise.
func (k *checker) windows(path string, w Windows) {
	const least Bytes = 64 << 10
	if w.Stream < least {
		k.fail(path+".stream", "%s is too small (want %s or more)", w.Stream, least)
	}
	if w.Connection < least {
		k.fail(path+".connection", "%s is too small (want %s or more)", w.Connection, least)
	}
}

// buffer refuses sizes that can only be mistakes.
func (k *checker) buffer(path string, size Bytes) {
	const least, most Bytes = 1 << 10, 4 << 20
	switch {
	case size < least:
		k.fail(path, "%s is too small (want %s to %s)", size, least, most)
	case size > most:
		k.fail(path, "%s is too large (want %s to %s)", size, least, most)
	}
}

func (k *checker) authorities(as []Authority) {
	if len(as) == 0 {
		k.fail("authorities", "missing (want at least one, with a name and servers or a directory)")
	}
	paths := map[string]string{} // by name
	for i, a := range as {
		path := fmt.Sprintf("authorities[%d]", i)
		first, taken := paths[a.Name]
		switch {
		case !k.has(path + ".name"):
			k.fail(path+".name", `missing (want the authority of xdstp://AUTHORITY/..., which may be "")`)
		case k.isUnusable(path + ".name"):
		case taken:
			k.fail(path+".name", "%q is already %s (want each name once)", a.Name, first)
		default:
			paths[a.Name] = path
			if err := checkAuthorityName(a.Name); err != nil {
				k.fail(path+".name", "%w", err)
			}
		}
		hasServers, hasDirectory := k.has(path+".servers"), k.has(path+".directory")
		switch {
		case hasServers && hasDirectory:
			k.fail(path, "has both servers and directory (want one of them)")
		case !hasServers && !hasDirectory && !k.unusable[path+".servers"] && !k.unusable[path+".directory"]:
			k.fail(path, "has neither servers nor directory (want one of them)")
		case hasServers && len(a.Servers) == 0:
			k.fail(path+".servers", "is empty (want at least one server, such as - address: cp.example.com:443)")
		}
		k.contextParameters(path+".context_parameters", a.ContextParameters)
		for j, s := range a.Servers {
			k.server(fmt.Sprintf("%s.servers[%d]", path, j), s)
		}
		k.failover(path, a)
		k.rollout(path+".rollout", a.Rollout)
	}
}

// authorityName matches the authorities of RFC 3986, but none with a *.
var authorityName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9._~!$&'()+,;=:@\[\]-]+$`)

func checkAuthorityName(name string) error {
	bare, isPattern := strings.CutPrefix(name, "*.")
	switch {
	case name == "":
		return nil
	case strings.Contains(name, "://"):
		return fmt.Errorf("%q has a scheme (want the authority alone, as in xdstp://AUTHORITY/...)", name)
	case strings.Contains(bare, "*"):
		return fmt.Errorf("%q has a * that is not its first label (want a name, or *.suffix)", name)
	case isPattern && strings.HasPrefix(bare, "."), !authorityName.MatchString(name):
		return fmt.Errorf("%q is not an authority (want what a URL has between // and /, or *.suffix)", name)
	}
	return nil
}

func (k *checker) server(path string, s Server) {
	if k.present(path+".address", s.Address, "want host:port") {
		if err := checkAddress(s.Address, false); err != nil {
			k.fail(path+".address", "%w", err)
		}
	}
	k.keepalive(path+".keepalive", s.Keepalive, 10*time.Second)
	k.probe(path+".probe", s.Probe)
	if least := Bytes(4 << 10); s.MaxRequestBytes < least {
		k.fail(path+".max_request_bytes", "%s is too small (want %s or more)", s.MaxRequestBytes, least)
	}
	k.polling(path, s)
	if s.Backoff.Base > s.Backoff.Max {
		k.fail(path+".backoff", "base %s is more than max %s (want base up to max)", s.Backoff.Base, s.Backoff.Max)
	}
	if s.TLS != nil {
		k.serverTLS(path+".tls", s.TLS)
	}
	if s.TokenFile != "" && s.TLS == nil && !k.isUnusable(path+".tls") {
		k.fail(path+".token_file", "needs tls: without it, anyone on the path could read the token (want tls, which may be {})")
	}
}

// probe refuses times that are too short for a busy server.
func (k *checker) probe(path string, p Probe) {
	const shortest = 100 * time.Millisecond
	if p.After < shortest {
		k.fail(path+".after", "%s is too short (want %s or more)", p.After, shortest)
	}
	if p.Timeout < shortest {
		k.fail(path+".timeout", "%s is too short (want %s or more)", p.Timeout, shortest)
	}
}

// polling checks the keys that have a meaning with only one of REST and gRPC.
func (k *checker) polling(path string, s Server) {
	if k.isUnusable(path + ".protocol") {
		return // the error in protocol comes first
	}
	k.protocolKeys(path, reflect.ValueOf(s), string(s.Protocol))
	if s.Protocol != ProtocolREST {
		k.windows(path+".windows", s.Windows)
		return
	}
	if k.has(path + ".keepalive") {
		k.fail(path+".keepalive", "is for gRPC (want no such key: with protocol rest, request_timeout finds a server that went away)")
	}
	if shortest := 100 * time.Millisecond; s.PollInterval < shortest {
		k.fail(path+".poll_interval", "%s is too short (want %s or more)", s.PollInterval, shortest)
	}
}

func (k *checker) rules(c *Config) {
	always := -1                // the first rule that matches every client
	matched := map[string]int{} // the first rule with this condition
	for i := range c.OldStyleNames {
		r := &c.OldStyleNames[i]
		path := fmt.Sprintf("old_style_names[%d]", i)
		if k.isUnusable(path) {
			continue
		}
		for _, err := range r.compile() {
			k.fail(join(path, err.Path), "%w", err.Err)
		}
		if at := path + ".node_fields"; k.has(at) && len(r.NodeFields) == 0 {
			k.fail(at, `is empty (want at least one field, such as - locality, or no such key)`)
		}
		k.ruleAuthority(path+".authority", r.Authority, c.Authorities)

		if k.isUnusable(path + ".when") {
			continue
		}
		first, repeated := matched[r.When]
		switch {
		case always >= 0:
			k.fail(path, "can never match, because old_style_names[%d] always does (want that rule last)", always)
		case r.Always():
			always = i
		case repeated:
			k.fail(path+".when", "can never match, because old_style_names[%d] has the same condition (want another one)", first)
		default:
			matched[r.When] = i
		}
	}
}

func (k *checker) ruleAuthority(path, name string, as []Authority) {
	if !k.has(path) {
		k.fail(path, "missing (want the name of an authority)")
		return
	}
	if strings.HasPrefix(name, "*") {
		k.fail(path, "%q is a pattern (want the name of one authority that it covers)", name)
		return
	}
	var names []string
	for i, a := range as {
		if at := fmt.Sprintf("authorities[%d].name", i); !k.has(at) || k.isUnusable(at) {
			return // the rule may mean this authority, whose name has an error
		}
		suffix, isPattern := strings.CutPrefix(a.Name, "*")
		if a.Name == name || isPattern && strings.HasSuffix(name, suffix) && name != suffix {
			return
		}
		if !isPattern {
			names = append(names, a.Name)
		}
	}
	if len(as) == 0 {
		return // there is an error for that
	}
	hint := didYouMean(name, names)
	if hint == "" {
		slices.Sort(names)
		hint = fmt.Sprintf(" (want one of %q)", slices.Compact(names))
	}
	k.fail(path, "%q is not in authorities%s", name, hint)
}
