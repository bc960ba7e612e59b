package downstream

import (
	"iter"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// The two forms of the protocol, as a stream uses them.

// typeSession is the protocol state of one type URL on a stream, in either form.
type typeSession interface {
	// of is the type URL.
	TypeURL() string
	// adding says that there may be something new or changed to tell, though
	// perhaps not now; removing, that there are removals to tell which were not
	// told with it.
	Adding() bool
	Removing() bool
	// catchingUp says that what is to be added can be sent once the client has
	// answered, so that what comes after it waits. That does not wait for what is
	// not known or cannot be had, which may take for ever.
	AwaitsACK() bool
	// additions returns the next response, nil if there is none. It carries those
	// removals that it may.
	Additions(may session.RemovalRule) *session.Response
	// removals returns a response of the removals that it may carry, nil if there are
	// none.
	Removals(may session.RemovalRule) *session.Response
	// untold counts what is kept to be told: with a client that changes its mind
	// and does not read it could grow.
	Pending() int
	// subscribed is the number of names that the client has subscribed to.
	Subscribed() int
	// following says that something is to be watched that takes the place of what is;
	// follow does that.
	Following() bool
	// takeOdd has names watched by themselves that cannot be watched for several clients
	// any more.
	TakeOdd()
	// offer says which list a request has of those that several clients have sent, nil for
	// none, before it is taken.
	Offer(session.NameList)
	Follow()
	// parameters are the dynamic parameters of its locators.
	Parameters() map[string]int
	// hopes is for the stream's unservable, lacks and decided for its waitsForOthers.
	Servable() (bool, *cache.Error)
	Unreachable() bool
	Decided() bool
	// resend has a name's resource sent again, if the client was told it.
	Resend(name string)
	// sent notes that a response goes to the client as the newest.
	Sent(*session.Response)
	// repeat takes a request of which nothing but the nonce is new, and says whether
	// it did: whether it acknowledges the newest response and, with asks as in glance,
	// asks for what the one before did. heard notes what a request was that was not
	// such a one.
	FastACK(nonce []byte, asks uint64) bool
	RecordRequest(nonce []byte, asks uint64)
	// InFlight is how many responses the client has not answered, as far as they are
	// remembered, and when the first of them was sent.
	InFlight() (n int, first uint32)
	Inspect() session.Inspection
	Close()
	Describe() session.Status
}

// request is what a stream needs of a request in either form.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
}

// form makes a stream's sessions: what differs between SotW and delta.
type form[R request, S typeSession] struct {
	name       string
	newRequest func() R
	newSession func(typeURL string, c *session.Client) S
	take       func(S, R) *session.NACK
	// names are all names in a request, and subscribed how many its session will
	// have when it has taken it: see check.
	names      func(R) iter.Seq[string]
	subscribed func(S, R, int) int
	// locators are those that a request subscribes to.
	locators func(R) []*discoveryv3.ResourceLocator
	fields   *requestFields
}

var deltaForm = form[*discoveryv3.DeltaDiscoveryRequest, *session.Delta]{
	name:       "delta",
	newRequest: func() *discoveryv3.DeltaDiscoveryRequest { return new(discoveryv3.DeltaDiscoveryRequest) },
	newSession: session.NewDelta,
	take:       (*session.Delta).Request,
	names:      deltaNames,
	subscribed: (*session.Delta).SubscribedWith,
	locators:   (*discoveryv3.DeltaDiscoveryRequest).GetResourceLocatorsSubscribe,
	fields:     &deltaFields,
}

var sotwForm = form[*discoveryv3.DiscoveryRequest, *session.SotW]{
	name:       "sotw",
	newRequest: func() *discoveryv3.DiscoveryRequest { return new(discoveryv3.DiscoveryRequest) },
	newSession: session.NewSotW,
	take:       (*session.SotW).Request,
	names:      sotwNames,
	subscribed: (*session.SotW).SubscribedWith,
	locators:   (*discoveryv3.DiscoveryRequest).GetResourceLocators,
	fields:     &sotwFields,
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
