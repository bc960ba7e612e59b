package relay

// The operator's pages and commands about clients that may not have everything. They show everything but secrets, and
// never show a client with a resource that it may not have.

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/operator"
)

// rightsOperator uses the admin listener as the page and the commands do.
type rightsOperator struct {
	ctx    context.Context
	relay  *Relay
	oracle *rightsOracle
}

// get returns the document at a path, and the status.
func (o *rightsOperator) get(path string, q url.Values) (string, int) {
	if len(q) > 0 {
		path += "?" + q.Encode()
	}
	w := httptest.NewRecorder()
	o.relay.admin.ServeHTTP(w, httptest.NewRequestWithContext(o.ctx, http.MethodGet, path, nil))
	return w.Body.String(), w.Code
}

// read decodes the document at a path, which must exist, and returns what is wrong with it. No such document has the
// content of a resource.
func (o *rightsOperator) read(path string, q url.Values, into any) string {
	text, code := o.get(path, q)
	if code != http.StatusOK {
		return fmt.Sprintf("%s?%s: status %d: %s", path, q.Encode(), code, text)
	}
	if at := strings.Index(text, "mark."); at >= 0 {
		return fmt.Sprintf("%s?%s shows the content of a resource: %s", path, q.Encode(), text[at:])
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Sprintf("%s?%s: %v", path, q.Encode(), err)
	}
	return ""
}

// sees returns what is wrong with what the operator sees.
func (o *rightsOperator) sees(clients []*rightsClient) string {
	var open []*rightsClient // those with a stream, in the order in which they came
	for _, c := range clients {
		c.mu.Lock()
		if c.form != "fetch" && c.form != "rest" && c.ended == nil {
			open = append(open, c)
		}
		c.mu.Unlock()
	}
	var streams []*downstream.Inspected
	for c := range o.relay.server.Inspect(0) {
		streams = append(streams, c)
	}
	if len(streams) != len(open) {
		return fmt.Sprintf("%d streams of clients are shown, and %d are open", len(streams), len(open))
	}
	for i, c := range open {
		for j := range rightsRequests {
			if !c.asksFor(&rightsRequests[j]) && (i+j)%8 > 0 { // there are many, and clients are alike
				continue
			}
			if wrong := o.explains(c, streams[i].Stream, &rightsRequests[j]); wrong != "" {
				return fmt.Sprintf("stream %d, %s: %s", streams[i].Stream, c.form, wrong)
			}
		}
		if wrong := o.differ(open, streams, i); wrong != "" {
			return wrong
		}
	}
	if wrong := o.countsStates(); wrong != "" {
		return wrong
	}
	return o.seesNoSecrets(streams)
}

// countsStates returns what is wrong with the metric of the relay's own resources: it must count what CSDS shows.
func (o *rightsOperator) countsStates() string {
	is, want := map[string]int64{}, map[string]int64{}
	for _, s := range o.relay.requestedResources() {
		for _, l := range s.Labels {
			if l.Key == "grpc.xds.cache_state" {
				is[l.Value.AsString()] += s.Value
			}
		}
	}
	for h := range o.relay.observer.Upstream(nil) {
		if h.Name != "" || h.State != session.Acked {
			want[h.State.String()]++
		}
	}
	if !maps.Equal(is, want) {
		return fmt.Sprintf("the metric has %v, and CSDS shows %v", is, want)
	}
	return ""
}

// explains returns what is wrong with the explanation of a name for a client.
func (o *rightsOperator) explains(c *rightsClient, stream uint64, r *request) string {
	var e operator.Explanation
	q := url.Values{"stream": {fmt.Sprint(stream)}, "name": {r.name}, "type": {rightsTypes[r.word]}}
	if wrong := o.read("/api/explain", q, &e); wrong != "" {
		return wrong
	}
	step := func(part string, stops bool) bool {
		return slices.ContainsFunc(e.Steps, func(s operator.ExplanationStep) bool { return s.Part == part && (s.Stops || !stops) })
	}
	asked, all := o.oracle.may(c, r)
	if e.Held != nil && e.Held.Subscription != r.name { // it is a member of a wildcard or glob
		if may, _ := o.mayHold(c, e.Held); !may && (e.Has || e.Held.Bytes > 0) {
			return fmt.Sprintf("it may not have %s, and is shown as having it: %+v", r.name, e)
		}
		return ""
	}
	switch {
	case !all && (e.Has || e.Held != nil && e.Held.Bytes > 0):
		return fmt.Sprintf("it may not have %s, and is shown as having it: %+v", r.name, e)
	case !asked && !step("rights", true), asked && !all && step("alias", false) && !step("rights", true):
		return fmt.Sprintf("it may not have %s, and the explanation does not say that: %+v", r.name, e)
	case all && step("rights", true):
		return fmt.Sprintf("it may have %s, and the explanation says that it may not: %+v", r.name, e)
	case all && c.asksFor(r) && len(r.gives) == 1 && !r.notJSON && e.Has != c.has(r.gives[0]) && (e.Has || !c.asksForElsewhere(r)):
		return fmt.Sprintf("that it has %s is %v, and it was sent it: %v: %+v", r.name, e.Has, !e.Has, e)
	case !all && !strings.HasPrefix(e.Verdict, "the client does not have it"):
		return fmt.Sprintf("it may not have %s, and the verdict is %q", r.name, e.Verdict)
	}
	return ""
}

// asksFor reports whether a request is one of the client's.
func (c *rightsClient) asksFor(r *request) bool {
	return slices.ContainsFunc(c.asks, func(ask []int) bool {
		return slices.ContainsFunc(ask, func(i int) bool { return &rightsRequests[i] == r })
	})
}

// asksForElsewhere reports whether another one of the client's requests has the same result. The content of an alias
// and its resource is the same, so its receipt does not show that the client has it under both names.
func (c *rightsClient) asksForElsewhere(r *request) bool {
	return slices.ContainsFunc(c.asks, func(ask []int) bool {
		return slices.ContainsFunc(ask, func(i int) bool {
			other := &rightsRequests[i]
			return other != r && slices.Contains(other.gives, r.gives[0])
		})
	})
}

// has reports whether the client received a resource.
func (c *rightsClient) has(marker string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Contains(c.received.String(), marker)
}

// differ returns what is wrong with the difference of a client and the one that came before it.
func (o *rightsOperator) differ(open []*rightsClient, streams []*downstream.Inspected, i int) string {
	j := max(i-1, 0)
	var d operator.ClientDifference
	q := url.Values{"a": {fmt.Sprint("#", streams[i].Stream)}, "b": {fmt.Sprint("#", streams[j].Stream)}}
	if wrong := o.read("/api/diff", q, &d); wrong != "" {
		return wrong
	}
	if i == j && d.Total > 0 {
		return fmt.Sprintf("stream %d differs from itself: %+v", streams[i].Stream, d)
	}
	for _, of := range d.Differences {
		for c, h := range map[*rightsClient]*operator.HeldResource{open[i]: of.A, open[j]: of.B} {
			if h == nil || !h.Has || open[i] == open[j] {
				continue
			}
			if may, known := o.mayHold(c, h); known && !may {
				return fmt.Sprintf("%s may not have %s, and is shown as having it: %+v", rightsIdentities[c.who].Source, of.Name, h)
			}
		}
	}
	return ""
}

// mayHold reports whether a client may have what the page shows it to have, under its name, wildcard or glob. known
// is false if that is not one of the requests.
func (o *rightsOperator) mayHold(c *rightsClient, h *operator.HeldResource) (may, known bool) {
	for i := range rightsRequests {
		r := &rightsRequests[i]
		if typeURL, _ := xdstype.Parse(h.Type); typeURL == rightsTypes[r.word] && r.name == h.Subscription {
			_, all := o.oracle.may(c, r)
			return all, true
		}
	}
	return false, false
}

// seesNoSecrets returns the page or document that shows a secret.
func (o *rightsOperator) seesNoSecrets(streams []*downstream.Inspected) string {
	paths := []string{
		"/clients", "/authorities", "/api/clients?search=n", "/api/status", "/ui/", "/ui/clients", "/api/lint?authority=a", "/api/lint?authority=b",
		"/api/resources?type=secret", "/ui/resources?type=secret",
	}
	for i, c := range streams {
		paths = append(paths, fmt.Sprintf("/api/client?stream=%d", c.Stream), fmt.Sprintf("/ui/client?stream=%d", c.Stream))
		for h := range c.Held(xdstype.SecretV3) {
			if i > 0 {
				break
			}
			paths = append(paths, "/ui/explain?"+url.Values{"stream": {fmt.Sprint(c.Stream)}, "type": {"secret"}, "name": {h.Subscription}}.Encode())
		}
		before := streams[max(i-1, 0)]
		paths = append(paths, "/ui/diff?"+url.Values{"a": {fmt.Sprint("#", c.Stream)}, "b": {fmt.Sprint("#", before.Stream)}}.Encode())
	}
	for h := range o.relay.observer.Upstream(func(k cache.Key) bool {
		return xdstype.Of(k.TypeURL) == xdstype.Secret || k.TypeURL == xdstype.ClusterV3
	}) {
		of := url.Values{"authority": {h.Key.Scope.Authority}, "type": {strings.TrimPrefix(h.Key.TypeURL, xdstype.Prefix)}, "name": {h.Name}}.Encode()
		if h.Name != "" {
			paths = append(paths, "/api/resource?"+of, "/ui/resource?"+of)
		}
	}
	for _, path := range paths {
		text, code := o.get(path, nil)
		if code >= http.StatusInternalServerError || strings.HasPrefix(path, "/api/") && code != http.StatusOK && !strings.HasPrefix(path, "/api/resource?") {
			return fmt.Sprintf("%s: status %d: %s", path, code, text)
		}
		for _, secret := range []string{"mark.secret", sealed} {
			if at := strings.Index(text, secret); at >= 0 {
				return fmt.Sprintf("%s shows a secret: %s", path, text[at:])
			}
		}
	}
	return ""
}
