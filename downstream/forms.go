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
	"github.com/xds-relay/xds-relay/internal/wire"
)

// The two forms of the protocol, SotW and delta, as a stream uses them.

// typeSession is the protocol state of one type URL on a stream, in either form.
type typeSession interface {
	// TypeURL is the session's type.
	TypeURL() string

	// Adding reports that there may be something new or changed to send, though perhaps not now. Removing reports that
	// there are removals to send that Additions has not sent.
	Adding() bool
	Removing() bool
	// AwaitsACK reports that new state can be sent only after the client has answered. Later types wait for that. They
	// do not wait for what is unknown or unavailable, which may take for ever.
	AwaitsACK() bool
	// Additions returns the next response with what is new, and with the removals that it may carry.
	// Removals returns one with removals only. Both return nil if there is nothing to send.
	Additions(may session.RemovalRule) *session.Response
	Removals(may session.RemovalRule) *session.Response
	// Sent notes that a response goes to the client as the newest one.
	Sent(*session.Response)
	// Spare notes that there is nothing to send now: the changes do not concern the client.
	Spare()
	// Resend has the resource of a name sent again, if the client has it.
	Resend(name string)
	// LetGo ends the hold on the resource of a name: the client has lost what refers to it.
	LetGo(name string)

	// FastACK processes a request in which nothing but the nonce is new, and reports whether it did: the request has to
	// acknowledge the newest response, and to request what the previous request did. asks is a hash over what it
	// requests, as in peeked. RecordRequest records any other request.
	FastACK(nonce []byte, asks uint64) bool
	RecordRequest(nonce []byte, asks uint64)
	// Offer is called before a request is processed, with the list of names in it if several clients have sent that
	// list; nil if not.
	Offer(session.NameList)
	// InFlight returns how many responses the client has not answered, as far as they are remembered, and when the
	// first of them was sent.
	InFlight() (n int, first uint32)
	// Warming reports that the client has not answered a response that has Clusters for it to warm.
	Warming() bool
	// Stale reports that the client's last request answered an earlier response than the newest, and that this one is
	// unanswered. sent is when it was sent. Then nothing is sent. StartOver ends that: see [session.SotW.StartOver].
	Stale() (sent uint32, is bool)
	StartOver(version string)
	// LastAnswer is the client's answer to the newest response that it has answered.
	LastAnswer() session.Answer

	// Following reports that there are redirects to follow. Follow watches their targets; the cache must not be held.
	Following() bool
	Follow()
	// ShowNew has the subscriptions in a scope watch the rolled-out state, for some names or for all. ShowAccepted has
	// them watch the accepted state. The cache must not be held.
	ShowNew(scope cache.Scope, names []string, all bool)
	ShowAccepted(scope cache.Scope)
	// Reconfigure looks up all subscriptions again, for a client with these rights. The cache must not be held.
	// restricted: the client may not have everything by this configuration or by the previous one.
	Reconfigure(rights session.Rights, generation uint32, restricted bool)
	// Moving reports that a subscription has moved because of Reconfigure and has no answer yet.
	Moving() bool
	// TakeOdd watches individually the names that a group of clients cannot watch any more.
	TakeOdd()

	// Pending counts the names that wait to be sent. They could grow without bound with a client that changes its
	// subscriptions and does not read. Unsubscribed counts those from which the client has unsubscribed: they also wait
	// while a set that may have them has no answer. Subscribed is the number of subscribed names. SharedList is the
	// list of names that the client watches together with others, nil if there is none, SubscribedAlone the number of its
	// other names, and NameBytes their length. Parameters are the dynamic parameters of its locators.
	Pending() int
	Unsubscribed() int
	Subscribed() int
	SubscribedAlone() int
	NameBytes() int
	SharedList() session.NameList
	// Watched iterates over the topics that the client watches by itself. Group is the group in which it watches
	// others, nil if there is none.
	Watched() iter.Seq[cache.Key]
	Group() session.WatchGroup
	// Views iterates over the topics of views that the client watches.
	Views() iter.Seq[cache.Key]
	// Uses reports whether the client watches a topic that in selects. Rejects returns the newest rejection that stands
	// of something in such a topic, nil if there is none. For a member of a view, in is called with the view's scope and
	// the member's name. If in is nil, it selects all topics.
	Uses(in func(cache.Key) bool) bool
	Rejects(in func(cache.Key) bool) *session.Rejection
	Parameters() map[string]int
	// Servable reports whether some subscription is held or may come, and if not, why. Unreachable reports that
	// something cannot be reached and is not held. Decided reports that the stream is kept in any case. Denied reports
	// whether the client may have nothing of what it has subscribed to, and why; why is nil if it has subscribed to
	// nothing.
	Servable() (bool, *cache.Error)
	Denied() (bool, *cache.Error)
	Unreachable() bool
	Decided() bool

	Describe() session.Status
	// Walk begins a walk through what the client holds.
	Walk() *session.Walk
	Inspect() session.Inspection
	// Names iterates over the subscriptions, as the client requested them.
	Names() iter.Seq[string]
	// Close ends all subscriptions.
	Close()
}

// request is what a stream needs from a request in either form.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
	Reset()
}

// form makes a stream's sessions, and holds what differs between SotW and delta.
type form[R request, S typeSession] struct {
	name       string
	newRequest func() R
	// complete adds what is not decoded with each request: a Node, and a list of names that several clients have sent.
	// Either may be nil.
	complete   func(R, *corev3.Node, *nameList)
	newSession func(typeURL string, c *session.Client) S
	take       func(S, R) *session.NACK
	// names iterates over all names in a request. subscribed returns how many names its session will have after the
	// request: see check.
	names func(R) iter.Seq[string]
	// longest is the length of the longest name, in bytes.
	longest    func(R) int
	subscribed func(S, R, int) int
	// locators are those that a request subscribes to.
	locators func(R) []*discoveryv3.ResourceLocator
	// spontaneous returns a copy of a request that answers no response, and the version in it. It is nil in delta, where
	// a request counts whatever its nonce is.
	spontaneous func(R) (copied R, version string)
	// resumed reports whether the first request of a type states that the client holds something.
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
	spontaneous: func(r *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryRequest, string) {
		return &discoveryv3.DiscoveryRequest{
			TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(),
			ResourceNames: slices.Clone(r.GetResourceNames()), ResourceLocators: r.GetResourceLocators(),
		}, r.GetVersionInfo()
	},
	resumed: func(r *discoveryv3.DiscoveryRequest) bool { return r.GetVersionInfo() != "" },
	fields:  &wire.SotWRequest,

	unprocessed: new(sync.Pool), requests: new(sync.Pool),
}

// deltaNames iterates over all names in a request.
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

// sotwNames iterates over all names in a request.
func sotwNames(req *discoveryv3.DiscoveryRequest) iter.Seq[string] {
	return slices.Values(texts(req.GetResourceNames(), req.GetResourceLocators()))
}

// texts returns the names, and each locator's parameters as one text.
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

// The form of a stream, as operators see it.
const (
	formUnary = "unary"
	formREST  = "rest"
)
