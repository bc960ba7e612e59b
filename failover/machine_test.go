package failover

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestMachine plays testdata/machine/*.txt: which servers are tried, and which one
// is active.
//
//	servers NAME... [policy=unreachable] [grace=D] [timeout=D] [hysteresis=D] [connect=D]
//	                            by priority; times are 30s, 15s, 5s and no limit otherwise
//	missing | held              a wanted topic has no answer, or all have one
//	opened NAME | responded NAME | lost NAME | failed NAME
//	after DURATION              time passes; its effects are printed with the time
//
// The actions are printed, and then the servers, the active one with a *, and
// the time of the next Tick.
func TestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/machine", func(t *testing.T, path string) {
		p := &machinePlayer{}
		datadriven.RunTest(t, path, p.play)
	})
}

type machinePlayer struct {
	machine *Machine
	names   []string
	now     time.Time
	begin   time.Time
	out     strings.Builder
}

func (p *machinePlayer) play(t *testing.T, d *datadriven.TestData) string {
	p.out.Reset()
	switch d.Cmd {
	case "servers":
		p.names = nil
		for _, arg := range d.CmdArgs {
			if len(arg.Vals) == 0 {
				p.names = append(p.names, arg.Key)
			}
		}
		p.machine = NewMachine(p.names, scanOptions(t, d))
		p.begin = time.Unix(1_000_000, 0)
		p.now = p.begin
		return "ok"
	case "missing", "held":
		p.machine.Missing(p.now, d.Cmd == "missing")
	case "opened":
		p.machine.Opened(p.now, p.server(t, d))
	case "responded":
		p.machine.Responded(p.now, p.server(t, d))
	case "lost":
		p.machine.Lost(p.now, p.server(t, d), "ended")
	case "failed":
		p.machine.Failed(p.now, p.server(t, d), "refused")
	case "after":
		p.after(t, d)
	default:
		d.Fatalf(t, "unknown")
	}
	p.act("")
	p.describe()
	return p.out.String()
}

func scanOptions(t *testing.T, d *datadriven.TestData) Options {
	o := Options{Grace: 30 * time.Second, Timeout: 15 * time.Second, Hysteresis: 5 * time.Second}
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			continue
		}
		span, err := time.ParseDuration(arg.Vals[0])
		switch arg.Key {
		case "policy":
			o.Unreachable, err = arg.Vals[0] == "unreachable", nil
		case "grace":
			o.Grace = span
		case "timeout":
			o.Timeout = span
		case "hysteresis":
			o.Hysteresis = span
		case "connect":
			o.ConnectTimeout = span
		}
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	return o
}

func (p *machinePlayer) server(t *testing.T, d *datadriven.TestData) int {
	i := slices.Index(p.names, d.CmdArgs[0].Key)
	if i < 0 {
		d.Fatalf(t, "no such server")
	}
	return i
}

func (p *machinePlayer) after(t *testing.T, d *datadriven.TestData) {
	span, err := time.ParseDuration(d.CmdArgs[0].Key)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	end := p.now.Add(span)
	for {
		next := p.machine.Next(p.now)
		if next.IsZero() || next.After(end) {
			break
		}
		p.now = next
		p.machine.Tick(p.now)
		p.act(fmt.Sprintf("at %s: ", p.now.Sub(p.begin)))
	}
	p.now = end
	p.machine.Tick(end)
}

func (p *machinePlayer) act(prefix string) {
	for _, a := range p.machine.Actions() {
		what := [...]string{"open", "close", "replace", "switch to", "fail"}[a.Kind]
		if a.Server >= 0 {
			what += " " + p.names[a.Server]
		}
		if a.Reason != "" {
			what += ": " + a.Reason
		}
		fmt.Fprintf(&p.out, "%s%s\n", prefix, what)
	}
}

func (p *machinePlayer) describe() {
	p.out.WriteString("[")
	for i, name := range p.names {
		if i > 0 {
			p.out.WriteString(" ")
		}
		s := &p.machine.servers[i]
		p.out.WriteString(name)
		if i == p.machine.Active() {
			p.out.WriteString("*")
		}
		p.out.WriteString(" " + s.state.String())
		if s.onTrial && s.state == up && i < p.machine.Active() {
			p.out.WriteString(" on trial")
		}
		if i < len(p.names)-1 {
			p.out.WriteString(",")
		}
	}
	p.out.WriteString("]")
	if since, down := p.machine.Unreachable(); down {
		fmt.Fprintf(&p.out, " unreachable for %s", p.now.Sub(since))
	}
	if next := p.machine.Next(p.now); !next.IsZero() {
		fmt.Fprintf(&p.out, " next in %s", next.Sub(p.now))
	}
	p.out.WriteString("\n")
}
