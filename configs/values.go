package configs

// This file is the types of values that have a notation of their own: sizes, numbers, file modes and
// enumerations. They are encoding.TextUnmarshalers, and their errors say what would be right.

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes, from 1 to 2 GiB - 1. In YAML it is a number, or a
// number with KiB, MiB or GiB.
type Bytes int

var units = []struct {
	suffix string
	size   int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// UnmarshalText sets b from its notation.
func (b *Bytes) UnmarshalText(text []byte) error {
	n, ok := parseSize(string(text), math.MaxInt32)
	if !ok {
		return fmt.Errorf("%q is not a size (want bytes, from 1 to 2 GiB - 1, such as 4194304 or 4MiB)", text)
	}
	*b = Bytes(n)
	return nil
}

// String returns b in the largest unit that divides it.
func (b Bytes) String() string { return formatSize(int64(b)) }

// DiskBytes is a size on disk in bytes, from 1 to 1024 TiB. Its notation is that of Bytes, and also has
// TiB.
type DiskBytes int64

// UnmarshalText sets b from its notation.
func (b *DiskBytes) UnmarshalText(text []byte) error {
	const most = 1 << 50
	n, ok := parseSize(string(text), most)
	if !ok {
		return fmt.Errorf("%q is not a size on disk (want bytes, from 1 to 1024 TiB, such as 512MiB or 4GiB)", text)
	}
	*b = DiskBytes(n)
	return nil
}

// String returns b in the largest unit that divides it.
func (b DiskBytes) String() string { return formatSize(int64(b)) }

// parseSize parses a size from 1 to most bytes.
func parseSize(text string, most int64) (n int64, ok bool) {
	for _, unit := range units {
		digits, ok := strings.CutSuffix(text, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n <= 0 || n > most/unit.size {
			return 0, false
		}
		return n * unit.size, true
	}
	return 0, false
}

// formatSize returns a size in the largest unit that divides it.
func formatSize(n int64) string {
	for _, unit := range units {
		if n != 0 && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.suffix
		}
	}
	return "0"
}

// Ratio is a part of a whole: a number that is more than 0, and at most 1.
type Ratio float64

// UnmarshalText sets r from its notation.
func (r *Ratio) UnmarshalText(text []byte) error {
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(f > 0 && f <= 1) {
		return fmt.Errorf("%q is not a part of a whole (want a number above 0 and up to 1, such as 0.5)", text)
	}
	*r = Ratio(f)
	return nil
}

// GuardWhen says which answers of an authority the relay guards.
type GuardWhen string

// Which answers the relay can guard.
const (
	GuardReconnect GuardWhen = "reconnect" // the first ones of a stream or server
	GuardAlways    GuardWhen = "always"    // all
)

func (GuardWhen) choices() []GuardWhen { return []GuardWhen{GuardReconnect, GuardAlways} }

// UnmarshalText sets w from its notation.
func (w *GuardWhen) UnmarshalText(text []byte) error {
	return choose(w, text, "is not a time of the guard")
}

// FileMode is the permissions of a file. In YAML it is a text of octal digits, such as "0600".
type FileMode uint32

// UnmarshalText sets m from its notation.
func (m *FileMode) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(strings.TrimPrefix(string(text), "0o"), 8, 32)
	if err != nil || n > 0o777 {
		return fmt.Errorf("%q is not a file mode (want octal digits, such as \"0600\")", text)
	}
	*m = FileMode(n)
	return nil
}

// String returns m in its notation.
func (m FileMode) String() string { return fmt.Sprintf("%04o", uint32(m)) }

// ListenerProtocol is what clients speak on a listener.
type ListenerProtocol string

// The protocols of listeners.
const (
	ListenerGRPC ListenerProtocol = "grpc"
	ListenerREST ListenerProtocol = "rest" // REST-JSON, over HTTP
)

func (ListenerProtocol) choices() []ListenerProtocol {
	return []ListenerProtocol{ListenerGRPC, ListenerREST}
}

// UnmarshalText sets p from its notation.
func (p *ListenerProtocol) UnmarshalText(text []byte) error {
	return choose(p, text, "is not a protocol of listeners")
}

// Redirects says what a listener sends for a redirect. TP1: "Server redirects".
type Redirects string

// The values of [Listener.Redirects].
const (
	RedirectsFollow Redirects = "follow" // the client receives the target
	RedirectsPass   Redirects = "pass"   // the client receives the redirect
)

func (Redirects) choices() []Redirects { return []Redirects{RedirectsFollow, RedirectsPass} }

// UnmarshalText sets r from its notation.
func (r *Redirects) UnmarshalText(text []byte) error {
	return choose(r, text, "is not a value of redirects")
}

// WhenUnreachable says which streams of a listener the relay ends while it can serve nothing on them.
// gRFC A71: "xDS Fallback".
type WhenUnreachable string

// The values of [Listener.WhenUnreachable].
const (
	UnreachableAuto WhenUnreachable = "auto" // those that subscribe by name only
	UnreachableEnd  WhenUnreachable = "end"  // also those with a wildcard, a glob or a view
	UnreachableWait WhenUnreachable = "wait" // none
)

func (WhenUnreachable) choices() []WhenUnreachable {
	return []WhenUnreachable{UnreachableAuto, UnreachableEnd, UnreachableWait}
}

// UnmarshalText sets w from its notation.
func (w *WhenUnreachable) UnmarshalText(text []byte) error {
	return choose(w, text, "is not a value of when_unreachable")
}

// ClientCertificates says whether clients need a certificate.
type ClientCertificates string

// The values of [ListenerTLS.ClientCertificates].
const (
	ClientCertificatesRequire  ClientCertificates = "require"
	ClientCertificatesOptional ClientCertificates = "optional"
)

func (ClientCertificates) choices() []ClientCertificates {
	return []ClientCertificates{ClientCertificatesRequire, ClientCertificatesOptional}
}

// UnmarshalText sets c from its notation.
func (c *ClientCertificates) UnmarshalText(text []byte) error {
	return choose(c, text, "is not a value of client_certificates")
}

// TLSVersion is a version of TLS.
type TLSVersion string

// The versions of TLS.
const (
	TLS12 TLSVersion = "1.2"
	TLS13 TLSVersion = "1.3"
)

func (TLSVersion) choices() []TLSVersion { return []TLSVersion{TLS12, TLS13} }

// UnmarshalText sets v from its notation.
func (v *TLSVersion) UnmarshalText(text []byte) error {
	return choose(v, text, "is not a version of TLS")
}

// Protocol is the form of xDS that the relay speaks with a server.
type Protocol string

// The protocols of servers.
const (
	ProtocolAuto  Protocol = "auto"  // delta, or SotW with servers that do not support delta
	ProtocolDelta Protocol = "delta" // incremental
	ProtocolSotW  Protocol = "sotw"  // state of the world
	ProtocolREST  Protocol = "rest"  // state of the world in JSON, by polling
)

func (Protocol) choices() []Protocol {
	return []Protocol{ProtocolAuto, ProtocolDelta, ProtocolSotW, ProtocolREST}
}

// UnmarshalText sets p from its notation.
func (p *Protocol) UnmarshalText(text []byte) error {
	return choose(p, text, "is not a protocol")
}

// RequestNode says which requests to a server have the Node.
type RequestNode string

// The values of [Server.Node].
const (
	NodeEveryRequest RequestNode = "every_request"
	NodeFirstRequest RequestNode = "first_request" // of a stream
)

// SotWAnswers says which SotW requests a server answers.
type SotWAnswers string

// The values of SotWAnswers.
const (
	SotWAnswersAuto  SotWAnswers = "auto"  // it is not known
	SotWAnswersAll   SotWAnswers = "all"   // requests with names that it does not have, too
	SotWAnswersKnown SotWAnswers = "known" // requests of which it has every name
)

func (SotWAnswers) choices() []SotWAnswers {
	return []SotWAnswers{SotWAnswersAuto, SotWAnswersAll, SotWAnswersKnown}
}

func (RequestNode) choices() []RequestNode { return []RequestNode{NodeEveryRequest, NodeFirstRequest} }

// UnmarshalText sets n from its notation.
func (n *RequestNode) UnmarshalText(text []byte) error {
	return choose(n, text, "does not say which requests have the Node")
}

// UnmarshalText sets a from its notation.
func (a *SotWAnswers) UnmarshalText(text []byte) error {
	return choose(a, text, "does not say which requests are answered")
}

// FailoverPolicy says when the relay uses the next server, or an alternative.
type FailoverPolicy string

// The policies of failover.
const (
	PolicyMissing     FailoverPolicy = "missing"     // when a resource is missing; gRFC A71
	PolicyUnreachable FailoverPolicy = "unreachable" // also after a grace time
)

func (FailoverPolicy) choices() []FailoverPolicy {
	return []FailoverPolicy{PolicyMissing, PolicyUnreachable}
}

// UnmarshalText sets p from its notation.
func (p *FailoverPolicy) UnmarshalText(text []byte) error {
	return choose(p, text, "is not a policy of failover")
}

// LoadReports says whether the relay sends load reports to an authority.
type LoadReports string

// The values of [Authority.LoadReports].
const (
	LoadReportsOn  LoadReports = "on"
	LoadReportsOff LoadReports = "off"
)

func (LoadReports) choices() []LoadReports { return []LoadReports{LoadReportsOn, LoadReportsOff} }

// UnmarshalText sets l from its notation.
func (l *LoadReports) UnmarshalText(text []byte) error {
	return choose(l, text, "does not say whether there are load reports")
}

// Check says what the relay does with a resource that clients would reject.
type Check string

// The ways to check resources.
const (
	CheckWarn   Check = "warn"   // refuse resources that no client can decode, report the others
	CheckRefuse Check = "refuse" // refuse all of them
	CheckOff    Check = "off"    // check nothing
)

func (Check) choices() []Check { return []Check{CheckWarn, CheckRefuse, CheckOff} }

// UnmarshalText sets c from its notation.
func (c *Check) UnmarshalText(text []byte) error {
	return choose(c, text, "is not a way to check resources")
}

// choice is an enumeration.
type choice[T any] interface {
	~string
	choices() []T
}

// choose sets to from text. If text is not one of the choices, the error says isNot and lists them.
func choose[T choice[T]](to *T, text []byte, isNot string) error {
	var words []string
	for _, c := range (*to).choices() {
		if string(c) == string(text) {
			*to = c
			return nil
		}
		words = append(words, string(c))
	}
	last := len(words) - 1
	return fmt.Errorf("%q %s (want %s or %s)", text, isNot, strings.Join(words[:last], ", "), words[last])
}
