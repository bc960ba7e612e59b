package upstream

import (
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// pipe is a connection that can be cut in the middle: writes succeed and are dropped, and
// nothing comes.
type pipe struct {
	net.Conn
	cut    *atomic.Bool
	closed chan struct{}
}

func (p *pipe) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if p.cut.Load() {
		<-p.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (p *pipe) Write(b []byte) (int, error) {
	if p.cut.Load() {
		return len(b), nil
	}
	return p.Conn.Write(b)
}

func (p *pipe) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return p.Conn.Close()
}

// runCut is run, with connections each of which can be cut.
func runCut(t *testing.T, o Options, test func(b *bench, cut func())) {
	t.Helper()
	run(t, o, func(b *bench) {
		var last atomic.Pointer[atomic.Bool]
		b.wire = func(conn net.Conn) net.Conn {
			p := &pipe{Conn: conn, cut: new(atomic.Bool), closed: make(chan struct{})}
			last.Store(p.cut)
			return p
		}
		test(b, func() { last.Load().Store(true) })
	})
}

func (b *bench) probed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.probes
}

func TestHalfOpenConnectionIsReplacedSoonAfterARequest(t *testing.T) {
	for _, form := range []Protocol{Delta, SotW} {
		t.Run(string(form), func(t *testing.T) {
			runCut(t, Options{Protocol: form}, func(b *bench, cut func()) {
				entries := b.watch("eds", "a")
				st := b.next()
				st.request(t)
				respond := func(st *scripted, nonce string, names ...string) {
					t.Helper()
					if form == Delta {
						b.respond(st, deltaResponse(t, "eds", nonce, names...))
					} else {
						b.respond(st, sotwResponse(t, "eds", nonce, names...))
					}
				}
				respond(st, "1", "a")
				st.request(t) // the ACK
				pass(10 * time.Minute)
				before := b.probed()

				cut()
				began := time.Now()
				b.cache.Watch(key("eds", "b"), &watcher{})
				st = b.next()
				if took := time.Since(began); took < 20*time.Second || took > 25*time.Second {
					t.Errorf("a new stream was opened after %s, want 20 s and a backoff", took)
				}
				if b.probed() != before {
					t.Error("a probe came over a connection that swallows")
				}
				if b.logs.count("half-open connection: nothing came for 10s after a request") != 1 {
					t.Error("the log does not say why the control plane was lost")
				}
				st.request(t)
				respond(st, "2", "a", "b")
				b.wantText(entries["a"], "2") // nothing was lost
			})
		})
	}
}

func TestControlPlaneThatIsOnlyMuteKeepsItsConnection(t *testing.T) {
	runCut(t, Options{Protocol: Delta}, func(b *bench, _ func()) {
		b.watch("eds", "a")
		st := b.next()
		st.request(t)
		pass(9 * time.Second)
		if n := b.probed(); n != 0 {
			t.Errorf("%d probes after 9 s of silence, want none yet", n)
		}
		pass(time.Hour)
		if n := b.probed(); n != 1 {
			t.Errorf("%d probes after a request and an hour of silence, want 1", n)
		}
		for range 10 {
			b.cache.Watch(key("cds", string(rune('a'+b.probed()))), &watcher{})
		}
		pass(time.Hour)
		if n := b.probed(); n != 2 {
			t.Errorf("%d probes after many requests at once and another silence, want 2", n)
		}
		select {
		case <-st.stopped:
			t.Error("the stream was ended")
		default:
		}
	})
}

func TestNoProbeWhileBytesCome(t *testing.T) {
	runCut(t, Options{Protocol: Delta}, func(b *bench, _ func()) {
		b.watch("eds", "a", "never")
		st := b.next()
		st.request(t)
		for i := range 100 {
			b.respond(st, deltaResponse(t, "eds", string(rune('a'+i%26)), "a"))
			st.request(t)
			pass(9 * time.Second)
		}
		if n := b.probed(); n != 0 {
			t.Errorf("%d probes of a connection on which something came every 9 s, want none", n)
		}
	})
}

func TestPollOnAHalfOpenConnectionIsRepeatedOnANewOne(t *testing.T) {
	const interval = 5 * time.Second
	for _, tt := range []struct {
		name    string
		version string // that the poll has
		prompt  bool   // there was an answer that there is nothing new, at once
		want    time.Duration
	}{
		{"of a server that does not hold requests", "1", true, 20 * time.Second},
		{"of a server that may hold it", "1", false, time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runREST(t, Options{}, RESTOptions{PollInterval: interval}, func(b *restBench) {
				a := b.watch("eds", "a")["a"]
				b.next().reply(200, answerOf(t, "eds", "1", "1", "a"))
				if tt.prompt {
					b.next().reply(304, "")
				}
				silent := b.next()
				<-silent.gone
				if took := time.Since(silent.at); took < tt.want || took > tt.want+time.Second {
					t.Errorf("the poll was given up after %s, want %s", took, tt.want)
				}
				again := b.next()
				b.wantAsked(again, "a@1")
				again.reply(200, answerOf(t, "eds", "2", "2", "a"))
				b.wantText(a, "2")
				b.mu.Lock()
				defer b.mu.Unlock()
				if b.conns != 2 {
					t.Errorf("%d connections were made, want 2", b.conns)
				}
				if tt.prompt && b.streams.Statuses()[0].LastError != "" {
					t.Errorf("the control plane counts as lost: %s", b.streams.Statuses()[0].LastError)
				}
			})
		})
	}
}
