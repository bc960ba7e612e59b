package upstream

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery"
	"github.com/xds-relay/xds-relay/internal/inbox"
	"github.com/xds-relay/xds-relay/upstream/session"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
)

// TestNamesStreamTranscripts plays testdata/namesstream_*.txt: one type of one client with
// both its streams, without I/O. The directives are those of TestTranscripts, and
//
//	return NAME...       a trial of the quarantine has brought these names or sets, which were not requested here
//	response on=first|names ...
//	lost STREAM | unreachable STREAM REASON | open STREAM [form=delta|sotw]
//
// A stream that must be opened again is opened again. Requests to the control plane
// are printed with their stream, updates of the cache without.
func TestNamesStreamTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !isOfNamesStream(path) {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			p := &twoStreamsPlayer{}
			datadriven.RunTest(t, path, p.play)
		})
	})
}

func isOfNamesStream(path string) bool { return strings.Contains(path, "namesstream_") }

// twoStreamsPlayer drives two Streams that have no goroutine.
type twoStreamsPlayer struct {
	sessiontest.Transcript
	sides []*Stream
	limit int
}

var sideNames = []string{"first", "names"}

func newSides(scope cache.Scope, f *form, to delivery.Receiver) []*Stream {
	var sides []*Stream
	for range sideNames {
		sides = append(sides, &Stream{
			scope: scope, to: to, form: f, forms: []*form{f}, feeds: map[string]*feed{},
			inbox: inbox.New[note](), live: true, opts: Options{watch: func(delivery.Event) {}}, touchyUntil: new(atomic.Int64),
		})
	}
	sides[0].namesStream = sides[1]
	return sides
}

// Deliver implements delivery.Receiver.
func (p *twoStreamsPlayer) Deliver(e delivery.Event) {
	for _, u := range e.Types {
		p.Print(u)
	}
}

func (p *twoStreamsPlayer) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	p.Out.Reset()
	quiet := d.HasArg("quietly")
	d.CmdArgs = slices.DeleteFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == "quietly" })
	take := func(n note) {
		for _, name := range sessiontest.NamesIn(d) {
			n.key = cache.Key{Scope: p.sides[0].scope, TypeURL: typeURLs[p.Type], Name: name}
			p.sides[0].inbox.Add(n)
		}
		if !quiet {
			p.sides[0].takeNotes()
		}
	}
	side := func() *Stream {
		which := d.CmdArgs[0].Key
		d.MaybeScanArgs(t, "on", &which)
		return p.sides[slices.Index(sideNames, which)]
	}
	switch d.Cmd {
	case "client":
		p.Transcript, p.limit = sessiontest.Transcript{}, 1<<20
		d.ScanArgs(t, "type", &p.Type)
		params := ""
		d.MaybeScanArgs(t, "params", &params)
		scope := cache.Scope{Authority: "a", Params: strings.ReplaceAll(params, ":", "=")}
		p.sides = newSides(scope, spoken(t, d), p)
	case "subscribe":
		take(note{})
	case "return":
		take(note{tried: true})
	case "again":
		take(note{again: true})
	case "unsubscribe":
		take(note{stop: true})
	case "response":
		s := side()
		f := s.feeds[typeURLs[p.Type]]
		r, err := s.form.spoken.Parse(p.Response(t, d, s.form == deltaForm))
		if err != nil || f == nil || !f.begun() {
			t.Fatalf("%s: nothing was requested there: %v", d.Pos, err)
		}
		s.answered(&call{})
		u, _ := f.session.Response(time.Now(), r)
		s.deliver(delivery.Response, f.topics, u)
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
	case "lost", "unreachable":
		s := side()
		loseSide(s)
		if d.Cmd == "unreachable" {
			s.down = &cache.Error{Code: codes.Unavailable, Message: d.CmdArgs[1].Key}
			s.retryAt = time.Now().Add(time.Minute)
			for _, f := range s.sorted() {
				u := f.topics.NewUpdate()
				f.topics.Failed(s.down, &u)
				s.deliver(delivery.Response, f.topics, u)
			}
		}
	case "open":
		s := side()
		if d.HasArg("form") {
			s.change(spoken(t, d))
		}
		openSide(s)
	default:
		t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	}
	if !quiet {
		for i, s := range p.sides {
			p.turn(sideNames[i], s)
		}
	}
	return p.Out.String()
}

func spoken(t *testing.T, d *datadriven.TestData) *form {
	t.Helper()
	var name string
	d.ScanArgs(t, "form", &name)
	return map[string]*form{"delta": deltaForm, "sotw": sotwForm}[name]
}

func loseSide(s *Stream) {
	s.live = false
	for _, f := range s.feeds {
		f.session, f.stale = nil, false
		if f.topics.Lost(); f.wanted() == 0 {
			s.remove(f)
		}
	}
}

func openSide(s *Stream) {
	s.live, s.down = true, nil
	for _, f := range s.feeds {
		f.session = s.form.begin(f.topics)
	}
}

// turn is what a Stream does after something has happened.
func (p *twoStreamsPlayer) turn(name string, s *Stream) {
	f := s.feeds[typeURLs[p.Type]]
	if f == nil {
		return
	}
	s.deliver(delivery.Silence, f.topics, f.topics.Expire(time.Now()))
	if f.session == nil && !f.stale {
		return
	}
	if f.stale || f.topics.NeedStream(f.begun()) {
		fmt.Fprintf(&p.Out, "%s: a new stream\n", name)
		loseSide(s)
		openSide(s)
		if f = s.feeds[typeURLs[p.Type]]; f == nil {
			return
		}
	}
	f.topics.Hear(time.Now()) // the control plane answers another type
	s.deliver(delivery.Silence, f.topics, f.session.Conclude(time.Now(), session.DefaultResponseTimeout, silenceAfter(f.topics.Answered())))
	for _, m := range f.session.Requests(time.Now(), p.limit) {
		fmt.Fprintf(&p.Out, "%s: ", name)
		p.Send(m)
	}
}
