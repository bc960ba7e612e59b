package csds

import (
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/secrets"
)

var emptyKey cache.Key

// answer builds responses.
type answer struct {
	send     func(*statusv3.ClientStatusResponse) error
	chunk    int  // the size at which a response is sent, in bytes
	excludes bool // contents

	response *statusv3.ClientStatusResponse
	size     int // an upper bound of the size of response
	sent     bool
	config   *statusv3.ClientConfig // the last one of response
}

// perMessage is more than the bytes that nesting a message adds to its fields.
const perMessage = 16

// begin begins the status of a client.
func (a *answer) begin(node *corev3.Node, scope string) error {
	config := &statusv3.ClientConfig{Node: node, ClientScope: scope}
	return a.put(proto.Size(config)+perMessage, config)
}

// put adds a config, to the next response if this one is full.
func (a *answer) put(size int, config *statusv3.ClientConfig) error {
	if a.size > 0 && a.size+size > a.chunk {
		if err := a.flush(false); err != nil {
			return err
		}
	}
	if a.response == nil {
		a.response = &statusv3.ClientStatusResponse{}
	}
	a.config = config
	a.response.Config = append(a.response.Config, config)
	a.size += size
	return nil
}

// flush sends the response. last says that it is the last one: if it is also the only one, it is sent even if it is
// empty.
func (a *answer) flush(last bool) error {
	r := a.response
	if r == nil && (!last || a.sent) {
		return nil
	}
	if r == nil {
		r = &statusv3.ClientStatusResponse{}
	}
	a.response, a.size, a.sent = nil, 0, true
	return a.send(r)
}

// add adds a resource of the client.
func (a *answer) add(h *downstream.Held) error {
	if h.Name == "" && (h.State == session.Acked || h.State == session.Unanswered || h.State == session.Nacked) {
		return nil // its members are listed instead
	}
	g := a.resource(h)
	size := proto.Size(g) + perMessage
	if a.size+size > a.chunk && len(a.config.GetGenericXdsConfigs()) > 0 {
		// The client's other resources go into another config with the same node and scope.
		again := &statusv3.ClientConfig{Node: a.config.GetNode(), ClientScope: a.config.GetClientScope()}
		if err := a.flush(false); err != nil {
			return err
		}
		if err := a.put(proto.Size(again)+perMessage, again); err != nil {
			return err
		}
	}
	a.config.GenericXdsConfigs = append(a.config.GenericXdsConfigs, g)
	a.size += size
	return nil
}

func (a *answer) resource(h *downstream.Held) *statusv3.ClientConfig_GenericXdsConfig {
	g := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: text(h.TypeURL), Name: text(h.Name), VersionInfo: text(h.Version)}
	if h.Since != 0 {
		g.LastUpdated = timeOf(time.Unix(0, h.Since))
	}
	if h.Name == "" {
		g.Name = text(h.Subscription)
	}
	g.ClientStatus, g.ConfigStatus = statesOf(h)
	g.ErrorState = errorOf(h)
	if a.excludes {
		return g
	}
	g.XdsConfig = content(h.Resource)
	if rejected := content(h.Rejected); rejected != nil {
		g.ErrorState.FailedConfiguration = rejected
	}
	return g
}

// statesOf returns a resource's status as the client reports it (client_status), and as the relay, which serves it,
// reports it (config_status).
func statesOf(h *downstream.Held) (adminv3.ClientResourceStatus, statusv3.ConfigStatus) {
	switch h.State {
	case session.Unanswered:
		return adminv3.ClientResourceStatus_REQUESTED, statusv3.ConfigStatus_STALE
	case session.Acked:
		if h.Pending || h.KeptBack {
			return adminv3.ClientResourceStatus_ACKED, statusv3.ConfigStatus_NOT_SENT
		}
		return adminv3.ClientResourceStatus_ACKED, statusv3.ConfigStatus_SYNCED
	case session.Nacked:
		return adminv3.ClientResourceStatus_NACKED, statusv3.ConfigStatus_ERROR
	case session.DoesNotExist:
		return adminv3.ClientResourceStatus_DOES_NOT_EXIST, statusv3.ConfigStatus_UNKNOWN
	case session.Failed:
		return adminv3.ClientResourceStatus_RECEIVED_ERROR, statusv3.ConfigStatus_UNKNOWN
	case session.TimedOut:
		return adminv3.ClientResourceStatus_TIMEOUT, statusv3.ConfigStatus_UNKNOWN
	case session.Requested:
	}
	return adminv3.ClientResourceStatus_REQUESTED, statusv3.ConfigStatus_NOT_SENT
}

// Notes in error_state.
const (
	saysStale    = "stale: it is from the store, and no control plane has confirmed it since the relay started"
	saysKeptBack = "kept back: a rollout has something newer, which this client does not get yet"
	saysPending  = "there is something newer, which the client has not been sent yet"
)

// errorOf returns the error_state of a resource, nil if nothing is wrong with it.
func errorOf(h *downstream.Held) *adminv3.UpdateFailureState {
	var says []string
	failure := &adminv3.UpdateFailureState{}
	if h.State == session.Nacked {
		if h.NACK != nil {
			says = append(says, h.NACK.Reason)
			failure.VersionInfo, failure.LastUpdateAttempt = text(h.NACK.Version), timeOf(h.NACK.At)
		} else {
			says = append(says, "the client has rejected it, and its words are not remembered")
		}
		if h.Rejected != nil {
			failure.VersionInfo = text(h.Rejected.Version())
		}
	}
	if h.Err != nil {
		says = append(says, h.Err.Error())
	}
	for _, note := range []struct {
		is   bool
		says string
	}{{h.Stale, saysStale}, {h.KeptBack, saysKeptBack}, {h.Pending && h.State != session.Requested && !h.KeptBack, saysPending}} {
		if note.is {
			says = append(says, note.says)
		}
	}
	if len(says) == 0 {
		return nil
	}
	failure.Details = text(strings.Join(says, "; "))
	return failure
}

// content returns the content of a resource as it may be shown. It returns nil if there is no resource, and also if
// the relay does not know the type or cannot read the resource: then it cannot mask the secrets.
func content(r *cache.Resource) *anypb.Any {
	if r == nil {
		return nil
	}
	url := "type.googleapis.com/" + r.TypeURL()[strings.LastIndexByte(r.TypeURL(), '/')+1:]
	if _, err := (descriptors.Types{}).FindMessageByURL(url); err != nil {
		return nil
	}
	is := secrets.Masked(&anypb.Any{TypeUrl: r.TypeURL(), Value: r.Value()})
	if is.GetTypeUrl() != r.TypeURL() {
		return nil
	}
	return is
}

// text makes a text valid in a protobuf message.
func text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
