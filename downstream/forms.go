package downstream

import (
	"iter"
	"slices"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/wire"
)

// The two forms of the protocol, as a stream uses them.

// typeSession is the protocol state of one type URL on a stream, in either form.
type typeSession interface {
	// TypeURL is that of the session.
	TypeURL() string

	// Adding says that there may be something new or changed to send, though perhaps not now.
	// Removing says that there are removals to send which did not go with it.
	Adding() bool
	Removing() bool
	// AwaitsACK says that what is new can be sent once the client has answered. Types that come
	// later wait for that. They do not wait for what is unknown or cannot be had, which may take
	// for ever.
	AwaitsACK() bool
	// Additions returns the next response with what is new, and with the removals that it may carry.
	// Removals returns one with removals only. Both return nil if there is nothing to send.
	Additions(may session.RemovalRule) *session.Response
	Removals(may session.RemovalRule) *session.Response
	// Sent notes that a response goes to the client as the newest.
	Sent(*session.Response)
	// Spare notes that there is nothing to be sent now: what has changed does not concern the client.
	Spare()
	// Resend has a name's resource sent again, if the client has it.
	Resend(name string)

	// FastACK takes a request of which nothing but the nonce is new, and says whether it did:
	// whether it acknowledges the newest response, and asks for what the one before did. asks is a
	// hash over what it asks for, as in peeked. RecordRequest records any other request.
	FastACK(nonce []byte, asks uint64) bool
	RecordRequest(nonce []byte, asks uint64)
	// Offer says, before a request is taken, which list of names it has of those that several
	// clients have sent; nil for none.
	Offer(session.NameList)
	// InFlight is how many responses the client has not answered, as far as they are remembered,
	// and when the first of them was sent.
	InFlight() (n int, first uint32)
	// LastAnswer is how the client has answered the newest response that it has answered.
	LastAnswer() session.Answer

	// Following says that redirects wait to be followed. Follow watches where they lead, while the
	// cache is not held.
	Following() bool
	Follow()
	// ShowNew has what is subscribed to of a scope watch what is rolled out, if it is one of some names, or
	// all. ShowAccepted has it watch what is accepted. The cache is not held.
	ShowNew(scope cache.Scope, names []string, all bool)
	ShowAccepted(scope cache.Scope)
	// Reconfigure looks up anew what is subscribed to, of a client with these rights, while the cache
	// is not held. restricted: by this configuration or the one before it may not have everything.
	Reconfigure(rights session.Rights, generation uint32, restricted bool)
	// Moving says that something has moved by that and has no answer yet.
	Moving() bool
	// TakeOdd watches by themselves the names that a group of clients cannot watch any more.
	TakeOdd()

	// Pending counts the names that wait to be sent. With a client that changes its mind and does
	// not read, they could grow. Unsubscribed counts those from which it has unsubscribed: they also
	// wait while a set that may have them has no answer. Subscribed is the number of names that it has
	// subscribed to. SharedList is the list of names that it watches with others, nil if there is none,
	// and SubscribedAlone the number of its other names. Parameters are the dynamic parameters of
	// its locators.
	Pending() int
	Unsubscribed() int
	Subscribed() int
	SubscribedAlone() int
	SharedList() session.NameList
	// Watched are the topics that it watches itself, and Group the group in which it watches others, nil if
	// there is none.
	Watched() iter.Seq[cache.Key]
	Group() session.WatchGroup
	Parameters() map[string]int
	// Servable says whether something that is subscribed to is held or may come, and if not, why.
	// Unreachable says that something cannot be reached and is not held, Decided that the stream is
	// kept whatever becomes of it.
	// Denied says whether the client may have nothing of what it is subscribed to, and why; that
	// is nil if it is subscribed to nothing.
	Servable() (bool, *cache.Error)
	Denied() (bool, *cache.Error)
	Unreachable() bool
	Decided() bool

	Describe() session.Status
	// Walk begins a walk through what the client holds.
	Walk() *session.Walk
	Inspect() session.Inspection
	// Names gives what is subscribed to, as it was requested.
	Names() iter.Seq[string]
	// Close ends all subscriptions.
	Close()
}

// request is what a stream needs of a request in either form.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
	Reset()
}

// form makes a stream's sessions: what differs between SotW and delta.
type form[R request, S typeSession] struct {
	name       string
	newRequest func() R
	// complete adds what is not decoded with each request: a Node and a list of names that several clients
	// have sent. Either may be nil.
	complete   func(R, *corev3.Node, *nameList)
	newSession func(typeURL string, c *session.Client) S
	take       func(S, R) *session.NACK
	// names are all names in a request, and subscribed how many its session will
	// have when it has taken it: see check.
	names func(R) iter.Seq[string]
	// longest is the length of the longest name, in bytes.
	longest    func(R) int
	subscribed func(S, R, int) int
	// locators are those that a request subscribes to.
	locators func(R) []*discoveryv3.ResourceLocator
	// resumed says whether the first request of a type says that the client holds something.
	resumed func(R) bool
	fields  *wire.RequestFields

	// Requests are reused: unprocessed has *newRequest[R, S], requests has *reusable[R].
	unprocessed, requests *sync.Pool
}

var deltaForm = form[*discoveryv3.DeltaDiscoveryRequest, *session.Delta]{
	name:       "delta",
	newRequest: func() *discoveryv3.DeltaDiscoveryRequest { return new(discoveryv3.DeltaDiscoveryRequest) },
	complete: func(r *discoveryv3.DeltaDiscoveryRequest, node *corev3.Node, list *nameList) {
		if node != nil {
			r.Node = node
		}
		if list != nil {
			r.ResourceNamesSubscribe = list.names
		}
	},
	newSession: session.NewDelta,
	take:       (*session.Delta).Request,
	names:      deltaNames,
	longest:    longestInDelta,
	subscribed: (*session.Delta).SubscribedWith,
	locators:   (*discoveryv3.DeltaDiscoveryRequest).GetResourceLocatorsSubscribe,
	resumed:    func(r *discoveryv3.DeltaDiscoveryRequest) bool { return len(r.GetInitialResourceVersions()) > 0 },
	fields:     &wire.DeltaRequest,

	unprocessed: new(sync.Pool), requests: new(sync.Pool),
}

var sotwForm = form[*discoveryv3.DiscoveryRequest, *session.SotW]{
	name:       "sotw",
	newRequest: func() *discoveryv3.DiscoveryRequest { return new(discoveryv3.DiscoveryRequest) },
	complete: func(r *discoveryv3.DiscoveryRequest, node *corev3.Node, list *nameList) {
		if node != nil {
			r.Node = node
		}
		if list != nil {
			r.ResourceNames = list.names
		}
	},
	newSession: session.NewSotW,
	take:       (*session.SotW).Request,
	names:      sotwNames,
	longest:    longestInSotW,
	subscribed: (*session.SotW).SubscribedWith,
	locators:   (*discoveryv3.DiscoveryRequest).GetResourceLocators,
	resumed:    func(r *discoveryv3.DiscoveryRequest) bool { return r.GetVersionInfo() != "" },
	fields:     &wire.SotWRequest,

	unprocessed: new(sync.Pool), requests: new(sync.Pool),
}

// deltaNames are all names in a request.
func deltaNames(req *discoveryv3.DeltaDiscoveryRequest) iter.Seq[string] {
	if len(req.GetResourceNamesSubscribe())+len(req.GetResourceNamesUnsubscribe())+len(req.GetInitialResourceVersions())+
		len(req.GetResourceLocatorsSubscribe())+len(req.GetResourceLocatorsUnsubscribe()) == 0 {
		return noNames // an ACK, as most are
	}
	return func(yield func(string) bool) {
		for _, names := range [][]string{
			texts(req.GetResourceNamesSubscribe(), req.GetResourceLocatorsSubscribe()),
			texts(req.GetResourceNamesUnsubscribe(), req.GetResourceLocatorsUnsubscribe()),
		} {
			for _, name := range names {
				if !yield(name) {
					return
				}
			}
		}
		for name := range req.GetInitialResourceVersions() {
			if !yield(name) {
				return
			}
		}
	}
}

func noNames(func(string) bool) {}

// longestInDelta is the length of the longest name in a request.
func longestInDelta(req *discoveryv3.DeltaDiscoveryRequest) int {
	n := max(
		longest(texts(req.GetResourceNamesSubscribe(), req.GetResourceLocatorsSubscribe())),
		longest(texts(req.GetResourceNamesUnsubscribe(), req.GetResourceLocatorsUnsubscribe())),
	)
	for name := range req.GetInitialResourceVersions() {
		n = max(n, len(name))
	}
	return n
}

// longestInSotW is the length of the longest name in a request.
func longestInSotW(req *discoveryv3.DiscoveryRequest) int {
	return longest(texts(req.GetResourceNames(), req.GetResourceLocators()))
}

func longest(names []string) (n int) {
	for _, name := range names {
		n = max(n, len(name))
	}
	return n
}

// sotwNames are all names in a request.
func sotwNames(req *discoveryv3.DiscoveryRequest) iter.Seq[string] {
	return slices.Values(texts(req.GetResourceNames(), req.GetResourceLocators()))
}

// texts are the names, and the parameters, each set of them in one text.
func texts(names []string, locators []*discoveryv3.ResourceLocator) []string {
	if len(locators) == 0 {
		return names
	}
	all := slices.Clone(names)
	for _, l := range locators {
		all = append(all, l.GetName(), paramsOf(l))
	}
	return all
}

func paramsOf(l *discoveryv3.ResourceLocator) string {
	return cache.Params(l.GetDynamicParameters()).String()
}

// What an operator sees in the place of a stream's form.
const (
	formUnary = "unary"
	formREST  = "rest"
)
