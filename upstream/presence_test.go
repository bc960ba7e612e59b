package upstream

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// presenceTest has a Presence and streams that do nothing.
type presenceTest struct {
	*testing.T
	*Presence
	logs *logBuffer
	all  []*Stream
}

func testPresence(t *testing.T, streams int, test func(*presenceTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &presenceTest{T: t, logs: &logBuffer{}}
		log := slog.New(slog.NewTextHandler(p.logs, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "event" {
				return slog.Attr{}
			}
			return a
		}}))
		p.Presence = NewPresence("cp:1", log)
		for i := range streams {
			p.all = append(p.all, &Stream{own: log.With("partition", i)})
		}
		test(p)
	})
}

// want compares the lines since the last time.
func (p *presenceTest) want(lines ...string) {
	p.Helper()
	pass(2 * together)
	p.logs.mu.Lock()
	got := strings.TrimSuffix(p.logs.b.String(), "\n")
	p.logs.b.Reset()
	p.logs.mu.Unlock()
	if want := strings.Join(lines, "\n"); got != want {
		p.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestALossIsOneLineEachWayHoweverManyStreamsItConcerns(t *testing.T) {
	const streams = 1000
	testPresence(t, streams, func(p *presenceTest) {
		for _, s := range p.all {
			p.answered(s, Delta)
		}
		p.want(`level=INFO msg="connected to control plane" partition=0 server=cp:1 protocol=delta`)
		for _, s := range p.all {
			p.lost(s, "broken pipe", true)
		}
		p.want(`level=INFO msg="control plane lost" server=cp:1 streams=1000 reason="broken pipe"`)
		for range 10 {
			for _, s := range p.all {
				p.lost(s, "refused", false)
			}
			pass(time.Second)
		}
		p.want(`level=WARN msg="control plane cannot be reached" server=cp:1 streams=1000 reason=refused`)
		late := &Stream{own: p.all[0].own}
		p.lost(late, "refused", false)
		p.want()
		for i, s := range append(p.all, late) {
			p.answered(s, Delta)
			if i%100 == 0 {
				pass(together / 10) // they come back bit by bit
			}
		}
		p.want(`level=INFO msg="control plane answers again" server=cp:1 streams=901 away=11.5s`)
	})
}

func TestARefusedFirstAttemptIsALossAndItsEndIsReported(t *testing.T) {
	testPresence(t, 1, func(p *presenceTest) {
		for range 5 {
			p.lost(p.all[0], "refused", false)
			pass(time.Second)
		}
		p.want(`level=WARN msg="control plane lost" partition=0 server=cp:1 streams=1 reason=refused`)
		p.answered(p.all[0], Delta)
		p.want(`level=INFO msg="control plane answers again" partition=0 server=cp:1 streams=1 away=5.5s`)
	})
}

// If a control plane always refuses one Node, an outage is still logged.
func TestOneStreamThatIsRefusedHidesNoOutage(t *testing.T) {
	testPresence(t, 3, func(p *presenceTest) {
		refused, others := p.all[0], p.all[1:]
		for _, s := range others {
			p.answered(s, Delta)
		}
		p.lost(refused, "denied", false)
		p.want(`level=INFO msg="connected to control plane" partition=1 server=cp:1 protocol=delta`,
			`level=WARN msg="control plane lost" partition=0 server=cp:1 streams=1 reason=denied`)
		for _, s := range others {
			p.lost(s, "gone", false)
		}
		p.lost(refused, "gone", false)
		p.want(`level=WARN msg="control plane lost" server=cp:1 streams=2 reason=gone`)
		for _, s := range others {
			p.answered(s, Delta)
		}
		p.lost(refused, "denied", false)
		p.want(`level=INFO msg="control plane answers again" server=cp:1 streams=2 away=500ms`)
		p.answered(refused, Delta)
		p.want(`level=INFO msg="control plane answers again" partition=0 server=cp:1 streams=1 away=1.5s`)
	})
}

func TestAStreamThatIsBackAtOnceIsTwoLines(t *testing.T) {
	testPresence(t, 1, func(p *presenceTest) {
		p.lost(p.all[0], "half-open", true)
		p.answered(p.all[0], Delta)
		p.want(`level=INFO msg="control plane lost" partition=0 server=cp:1 streams=1 reason=half-open`,
			`level=INFO msg="control plane answers again" partition=0 server=cp:1 streams=1 away=0s`)
	})
}

// A stream that nobody needs any more is no loss, and does not hide one.
func TestAStreamThatIsNotWantedIsNotLost(t *testing.T) {
	testPresence(t, 2, func(p *presenceTest) {
		p.lost(p.all[0], "refused", false)
		p.rests(p.all[0])
		p.want()
		p.lost(p.all[0], "refused", false)
		p.want(`level=WARN msg="control plane lost" partition=0 server=cp:1 streams=1 reason=refused`)
		p.leaves(p.all[0])
		p.lost(p.all[1], "refused", false)
		p.want(`level=WARN msg="control plane lost" partition=1 server=cp:1 streams=1 reason=refused`)
		p.rests(p.all[1])
		p.answered(p.all[1], SotW)
		p.want(`level=INFO msg="connected to control plane" partition=1 server=cp:1 protocol=sotw`)
		p.leaves(p.all[1])
		if len(p.streams) > 0 || p.up != 0 || p.current != nil {
			t.Errorf("something is left: %d streams, %d up, %v", len(p.streams), p.up, p.current)
		}
	})
}

// An unstable control plane causes a few lines only, and an outage is still logged.
func TestLossesOfAControlPlaneThatFlapsAreBounded(t *testing.T) {
	testPresence(t, 1, func(p *presenceTest) {
		const flaps = 100
		for range flaps {
			p.lost(p.all[0], "reset", true)
			pass(300 * time.Millisecond)
			p.answered(p.all[0], Delta)
			pass(300 * time.Millisecond)
		}
		p.lost(p.all[0], "gone", false) // and stays so
		pass(lossEvery + time.Second)
		p.logs.mu.Lock()
		lines := p.logs.b.String()
		p.logs.mu.Unlock()
		lost, back := strings.Count(lines, "control plane lost"), strings.Count(lines, "control plane answers again")
		const most = lossesAtOnce + int(2*flaps*300*time.Millisecond/lossEvery) + 1
		if lost < most-2 || lost > most || back != lost-1 {
			t.Errorf("%d lines when it was lost and %d when it was back, want about %d of each:\n%s", lost, back, most, lines)
		}
		skipped := 0
		for _, field := range strings.Fields(lines) {
			if n, is := strings.CutPrefix(field, "skipped="); is {
				k, _ := strconv.Atoi(n)
				skipped += k
			}
		}
		if lost+skipped != flaps+1 {
			t.Errorf("%d losses were logged and %d left out, want all %d:\n%s", lost, skipped, flaps+1, lines)
		}
		if !strings.Contains(lines[strings.LastIndex(lines, "control plane lost"):], "reason=gone") {
			t.Errorf("the outage at the end is not the last line:\n%s", lines)
		}
		p.answered(p.all[0], Delta)
		pass(time.Second)
		if n := p.logs.count("control plane answers again"); n != back+1 {
			t.Errorf("its end is not logged")
		}
	})
}

// The same with a Stream: one line each way, whatever happens in between.
func TestAStreamReportsWhenItsControlPlaneIsLostAndBack(t *testing.T) {
	run(t, Options{Protocol: Delta}, func(b *bench) {
		lines := func(what string) int { return b.logs.count(fmt.Sprintf("msg=%q", what)) }
		b.watch("cds", "a")
		st := b.next()
		st.delta(t)
		b.respond(st, deltaResponse(t, "cds", "1", "a"))
		b.refuse(errors.New("nobody there"))
		st.end <- nil
		b.server.Stop()
		pass(10 * time.Minute)
		if lost, back := lines("control plane lost"), lines("control plane answers again"); lost != 1 || back != 0 {
			t.Errorf("lost %d times, back %d times", lost, back)
		}
		if n := b.logs.count("nobody there"); n != 1 {
			t.Errorf("what is wrong is logged %d times", n)
		}
	})
}
