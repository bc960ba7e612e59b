package relay

// What operators see of the fleet at any of its relays, and do at all of them: the relay asks the other members what it
// was asked itself. A member that is asked answers for itself only.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/admin/page"
	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/internal/loglines"
)

const (
	// membersAnswerWithin is how long the relay waits for the answers of other members to an operator.
	membersAnswerWithin = time.Second
	// mostAsked bounds how many members are asked at a time.
	mostAsked = 32
	// localKey is the key of a query for this relay only.
	localKey = "local"
)

// NoAnswer is a member that does not answer an operator.
type NoAnswer struct {
	Relay  string `json:"relay"`
	Reason string `json:"reason"`
}

// wholeFleet returns the relay's part in the fleet if a query is for all relays of it, otherwise nil.
func (r *Relay) wholeFleet(q url.Values) *membership {
	if q.Get(localKey) == "true" {
		return nil
	}
	return r.fleet.Load()
}

// memberAnswer is the answer of a member.
type memberAnswer struct {
	relay string
	fleet.Answer
}

// askMembers asks all other members at once, and returns the answers in the order of their addresses, and who does not
// answer in time.
func (m *membership) askMembers(q fleet.Question) (answers []memberAnswer, silent []NoAnswer) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), membersAnswerWithin, fmt.Errorf("no answer within %s", membersAnswerWithin))
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, fleet.MemberHeader, m.Address())
	values := url.Values{}
	for key, list := range q.Values {
		values[key] = list
	}
	values.Set(localKey, "true")
	q.Values = values
	var mu sync.Mutex
	var asking sync.WaitGroup
	room := make(chan struct{}, mostAsked)
	for _, member := range m.Status().Members {
		switch {
		case member.Self:
			continue
		case !member.Up:
			silent = append(silent, NoAnswer{member.Address, cmp.Or(member.Reason, "it has not been reached yet")})
			continue
		}
		asking.Go(func() {
			room <- struct{}{}
			a, err := fleet.Ask(ctx, member.Conn, q)
			<-room
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				answers = append(answers, memberAnswer{member.Address, a})
			case ctx.Err() != nil:
				silent = append(silent, NoAnswer{member.Address, context.Cause(ctx).Error()})
			default:
				silent = append(silent, NoAnswer{member.Address, loglines.Clip(status.Convert(err).Message())})
			}
		})
	}
	asking.Wait()
	slices.SortFunc(answers, func(a, b memberAnswer) int { return strings.Compare(a.relay, b.relay) })
	slices.SortFunc(silent, func(a, b NoAnswer) int { return strings.Compare(a.Relay, b.Relay) })
	return answers, silent
}

// askAll asks all other members, and decodes their answers.
func askAll[T any](m *membership, q fleet.Question, each func(relay string, answer *T)) (silent []NoAnswer) {
	answers, silent := m.askMembers(q)
	for _, a := range answers {
		into := new(T)
		var err error
		if a.Status == http.StatusOK {
			err = json.Unmarshal(a.Body, into)
		} else {
			err = fmt.Errorf("%s", strings.TrimSpace(string(a.Body)))
		}
		if err != nil {
			silent = append(silent, NoAnswer{a.relay, loglines.Clip(err.Error())})
			continue
		}
		each(a.relay, into)
	}
	return silent
}

// askable are the paths that members ask for, by method.
func askable(q fleet.Question) bool {
	if q.Method == http.MethodPost {
		return strings.HasPrefix(q.Path, "/rollout/")
	}
	return q.Method == http.MethodGet && slices.Contains([]string{"/api/status", "/api/clients", "/api/explain", "/api/diff", "/rollouts"}, q.Path)
}

// askedBy is the key of a context with the operator for whom a member asks.
type askedBy struct{}

// answerMember answers the question of a member, for this relay only.
func (r *Relay) answerMember(ctx context.Context, q fleet.Question) (fleet.Answer, error) {
	if !askable(q) {
		return fleet.Answer{}, status.Errorf(codes.InvalidArgument, "members do not answer %s %s", loglines.Clip(q.Method), loglines.Clip(q.Path))
	}
	values := url.Values(q.Values)
	if values == nil {
		values = url.Values{}
	}
	values.Set(localKey, "true")
	ctx = context.WithValue(ctx, askedBy{}, fmt.Sprintf("%s at the relay %s", loglines.Clip(q.Operator), loglines.Clip(fleet.MemberOf(ctx))))
	target, body := q.Path, ""
	if q.Method == http.MethodGet {
		target += "?" + values.Encode()
	} else {
		body = values.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, q.Method, target, strings.NewReader(body))
	if err != nil {
		return fleet.Answer{}, status.Error(codes.InvalidArgument, err.Error())
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := &answerWriter{header: http.Header{}, status: http.StatusOK}
	r.admin.ServeHTTP(w, request)
	if w.body.Len() > fleet.MaxAnswer {
		return fleet.Answer{}, status.Errorf(codes.ResourceExhausted, "the answer has more than %d bytes", fleet.MaxAnswer)
	}
	return fleet.Answer{Status: w.status, Body: w.body.Bytes()}, nil
}

// answerWriter keeps a response in memory, but not more than a little above the limit.
type answerWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *answerWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *answerWriter) WriteHeader(status int) { w.status = status }

// Write implements http.ResponseWriter.
func (w *answerWriter) Write(b []byte) (int, error) {
	if w.body.Len() > fleet.MaxAnswer {
		return 0, fmt.Errorf("the answer has more than %d bytes", fleet.MaxAnswer)
	}
	return w.body.Write(b)
}

// fleetOverview answers a query for the status: of all relays of the fleet unless it is for this one.
func (r *Relay) fleetOverview(q url.Values) *RelayStatus {
	m := r.wholeFleet(q)
	if m == nil {
		return r.overview()
	}
	return r.fleetViews.get(func() *RelayStatus { return r.lookAroundFleet(m) })
}

// lookAroundFleet adds what the other members say to the relay's status.
func (r *Relay) lookAroundFleet(m *membership) *RelayStatus {
	all := *r.overview()
	all.Relay, all.AllClients = m.Address(), all.Clients
	all.Problems = slices.Clone(all.Problems)
	for i := range all.Problems {
		all.Problems[i].Relay = all.Relay
	}
	all.NoAnswer = askAll(m, fleet.Question{Method: http.MethodGet, Path: "/api/status"}, func(relay string, s *RelayStatus) {
		all.AllClients += s.Clients
		all.More += s.More
		for _, p := range s.Problems {
			p.Relay, p.Page, p.Who = relay, "", "" // its pages are not here
			all.Problems = append(all.Problems, p)
		}
	})
	slices.SortStableFunc(all.Problems, func(a, b Problem) int { return cmp.Compare(a.Severity, b.Severity) }) // error, warning
	return &all
}

// fleetClients answers a query for clients: of all relays of the fleet unless it is for this one. The pages after the first
// one are of this relay only.
func (r *Relay) fleetClients(q url.Values) (*ClientList, error) {
	list, err := r.clientList(q)
	m := r.wholeFleet(q)
	if err != nil || m == nil || q.Get("after") != "" {
		return list, err
	}
	rows, err := number(q, "limit", listLength)
	if err != nil {
		return nil, err
	}
	rows = max(min(rows, mostRows), 1)
	own := m.Address()
	for i := range list.Clients {
		list.Clients[i].Relay = own
	}
	list.NoAnswer = askAll(m, fleet.Question{Method: http.MethodGet, Path: "/api/clients", Values: q}, func(relay string, of *ClientList) {
		list.Open += of.Open
		list.More = list.More || of.Next != 0
		for _, c := range of.Clients {
			if uint64(len(list.Clients)) == rows {
				list.More = true
				break
			}
			c.Relay, c.Elsewhere = relay, true
			list.Clients = append(list.Clients, c)
		}
	})
	return list, nil
}

// atAnyRelay answers a query about clients by the relay that has them: this one, or the first other one that answers.
func atAnyRelay[T any](r *Relay, q url.Values, path string, local func(url.Values) (*T, error), name func(answer *T, relay string)) (*T, error) {
	answer, err := local(q)
	m := r.wholeFleet(q)
	if m == nil {
		return answer, err
	}
	if err == nil {
		name(answer, m.Address())
		return answer, nil
	}
	if is, ok := err.(*page.Error); !ok || is.Status != http.StatusNotFound { //nolint:errorlint // it is never wrapped
		return nil, err
	}
	answers, silent := m.askMembers(fleet.Question{Method: http.MethodGet, Path: path, Values: q})
	for _, a := range answers {
		into := new(T)
		switch {
		case a.Status == http.StatusNotFound:
			continue
		case a.Status != http.StatusOK:
			return nil, &page.Error{Status: a.Status, Text: fmt.Sprintf("the relay %s: %s", a.relay, strings.TrimSpace(string(a.Body)))}
		}
		if err := json.Unmarshal(a.Body, into); err != nil {
			return nil, err
		}
		name(into, a.relay)
		return into, nil
	}
	if len(silent) > 0 {
		return nil, page.Missing(fmt.Sprintf("%v; these relays of the fleet do not answer: %s", err, relaysOf(silent)))
	}
	return nil, err
}

func relaysOf(silent []NoAnswer) string {
	var names []string
	for _, s := range silent {
		names = append(names, s.Relay)
	}
	return strings.Join(names, ", ")
}

// fleetExplanation answers a query for an explanation, by the relay that has the client.
func (r *Relay) fleetExplanation(q url.Values) (*Explanation, error) {
	return atAnyRelay(r, q, "/api/explain", r.explain, func(e *Explanation, relay string) { e.Relay = relay })
}

// fleetDifference answers a query for the differences between two clients, by the relay that has both.
func (r *Relay) fleetDifference(q url.Values) (*ClientDifference, error) {
	return atAnyRelay(r, q, "/api/diff", r.clientDifference, func(d *ClientDifference, relay string) { d.A.Relay, d.B.Relay = relay, relay })
}
