package rollout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// TestMachine plays testdata/*.txt: which clients are shown which state, and when a change is accepted or taken back.
//
//	machine [first=N] [steps=(10%,50%)] [soak=D] [rejections=N] [deaths=N] [frozen]
//	                            the defaults are 1, 10% and 50%, 30s, 1 and 2
//	clients COHORT N            so many clients join and ACK the accepted state
//	joined CLIENT COHORT [who=WHO] [ineligible] [new]     a client joins; new: with the new state
//	withdraw CLIENT             the client can no longer be shown the new state
//	trust                       no identity is passed over any longer
//	settled | left | died | sent | untouched | acked CLIENT...
//	taken CLIENT...             sent and acked; `shown` stands for all clients that were shown the new state
//	rejected CLIENT [by=(WHO,...) beside=N of=COHORT] WORDS   the client is a relay, with these behind it, and N others
//	changed CONTENT [hidden]    nothing is new if CONTENT is `accepted`
//	configure [as machine]      the settings change, except frozen
//	regroup CLIENT COHORT       the client moves to another cohort
//	approve | reject WORDS | freeze | thaw
//	after DURATION              time passes; decisions are printed with their time
//
// The output has the decisions, and then the state: the phase with its step, and for each cohort the numbers of
// clients that were shown the new state, that have accepted it, and in total, and of those behind relays that have rejected it.
func TestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		p := &player{}
		datadriven.RunTest(t, path, p.play)
	})
}

type player struct {
	machine *Machine
	now     Time
	shown   []string // since the last acked or taken
	out     strings.Builder
}

func (p *player) play(t *testing.T, d *datadriven.TestData) string {
	p.out.Reset()
	m, args := p.machine, make([]string, len(d.CmdArgs))
	for i, a := range d.CmdArgs {
		args[i] = a.Key
	}
	each := func(f func(Time, string)) {
		names := args
		if slices.Equal(names, []string{"shown"}) {
			names, p.shown = p.shown, nil
		}
		for _, name := range names {
			f(p.now, name)
		}
	}
	words := strings.TrimSpace(d.Input)
	switch d.Cmd {
	case "machine":
		p.machine, p.now, p.shown = NewMachine(scanOptions(t, d)), Time(time.Hour), nil
		return "ok"
	case "clients":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		for i := range n {
			m.Joined(p.now, Client{ID: fmt.Sprintf("%s-%d", args[0], i+1), Cohort: args[0], Eligible: true})
			m.Settled(p.now, fmt.Sprintf("%s-%d", args[0], i+1))
		}
	case "joined":
		c := Client{ID: args[0], Cohort: args[1], Eligible: !slices.Contains(args, "ineligible"), OnNew: slices.Contains(args, "new")}
		d.MaybeScanArgs(t, "who", &c.Who)
		m.Joined(p.now, c)
	case "withdraw":
		m.Withdraw(p.now, args[0])
	case "trust":
		fmt.Fprintf(&p.out, "%d are trusted again\n", m.Trust(p.now))
	case "settled":
		each(m.Settled)
	case "left":
		each(m.Left)
	case "died":
		each(m.Died)
	case "sent":
		each(m.Sent)
	case "untouched":
		each(m.Untouched)
	case "acked":
		each(m.Acked)
	case "taken":
		each(func(now Time, id string) {
			m.Sent(now, id)
			m.Acked(now, id)
		})
	case "rejected":
		var by chain.Rejecters
		for _, a := range d.CmdArgs[1:] {
			switch a.Key {
			case "by":
				for _, who := range a.Vals {
					by.Whos = append(by.Whos, chain.Rejecter{Who: who})
				}
			case "of":
				for i := range by.Whos {
					by.Whos[i].Cohort = a.Vals[0]
				}
			case "beside":
				d.ScanArgs(t, "beside", &by.Others)
			}
		}
		m.Rejected(p.now, args[0], words, by)
	case "changed":
		content := args[0]
		if content == "accepted" {
			content = ""
		}
		m.Changed(p.now, content, slices.Contains(args, "hidden"))
	case "approve":
		if !m.Approve(p.now) {
			p.out.WriteString("nothing to approve\n")
		}
	case "reject":
		if !m.Reject(p.now, words) {
			p.out.WriteString("nothing to reject\n")
		}
	case "freeze":
		m.Freeze(p.now)
	case "thaw":
		m.Thaw(p.now)
	case "configure":
		m.Configure(scanOptions(t, d))
	case "regroup":
		m.Regroup(p.now, args[0], args[1])
	case "after":
		p.after(t, d)
	default:
		d.Fatalf(t, "unknown")
	}
	m.Tick(p.now)
	p.perform("")
	p.describe()
	return p.out.String()
}

func scanOptions(t *testing.T, d *datadriven.TestData) Options {
	o := Options{First: 1, Steps: []float64{0.1, 0.5}, Soak: Time(30 * time.Second), Rejections: 1, Deaths: 2}
	for _, a := range d.CmdArgs {
		number := func() int {
			n, err := strconv.Atoi(a.Vals[0])
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return n
		}
		switch a.Key {
		case "first":
			o.First = number()
		case "rejections":
			o.Rejections = number()
		case "deaths":
			o.Deaths = number()
		case "frozen":
			o.Frozen = true
		case "soak":
			soak, err := time.ParseDuration(a.Vals[0])
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			o.Soak = Time(soak)
		case "steps":
			o.Steps = nil
			for _, v := range a.Vals {
				percent, err := strconv.ParseFloat(strings.TrimSuffix(v, "%"), 64)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				o.Steps = append(o.Steps, percent/100)
			}
		}
	}
	return o
}

func (p *player) after(t *testing.T, d *datadriven.TestData) {
	span, err := time.ParseDuration(d.CmdArgs[0].Key)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	end := p.now + Time(span)
	for {
		next := p.machine.Next(p.now)
		if next == 0 || next > end {
			break
		}
		p.now = next
		p.machine.Tick(next)
		p.perform(fmt.Sprintf("at %s: ", time.Duration(next)-time.Hour))
	}
	p.now = end
}

func (p *player) perform(prefix string) {
	var shown []string
	for _, d := range p.machine.Decisions() {
		switch d.Kind {
		case ShowNew:
			shown = append(shown, d.Client)
			p.shown = append(p.shown, d.Client)
		case ShowAccepted:
			fmt.Fprintf(&p.out, "%sback to the accepted state: %s\n", prefix, d.Client)
		case GoBack:
			fmt.Fprintf(&p.out, "%sall go back\n", prefix)
		case Accept:
			fmt.Fprintf(&p.out, "%saccepted\n", prefix)
		case SendNACK:
			fmt.Fprintf(&p.out, "%sNACK to the control plane: %s\n", prefix, d.Reason)
		case PassOver:
			fmt.Fprintf(&p.out, "%s%s is passed over\n", prefix, d.Client)
		}
	}
	if len(shown) > 8 {
		fmt.Fprintf(&p.out, "%sshow the new state to %d clients\n", prefix, len(shown))
	} else if len(shown) > 0 {
		fmt.Fprintf(&p.out, "%sshow the new state to %s\n", prefix, strings.Join(shown, " "))
	}
}

func (p *player) describe() {
	s := p.machine.Status()
	fmt.Fprintf(&p.out, "[%s", s.Phase)
	if s.Phase == Rolling {
		fmt.Fprintf(&p.out, " step %d", s.Step)
	}
	if s.Frozen {
		p.out.WriteString(" frozen")
	}
	for _, c := range s.Cohorts {
		fmt.Fprintf(&p.out, ", %s %d/%d/%d", c.Name, c.Shown, c.Taken, c.Clients)
		if c.Behind > 0 {
			fmt.Fprintf(&p.out, " and %d behind", c.Behind)
		}
	}
	p.out.WriteString("]")
	if next := p.machine.Next(p.now); next != 0 {
		fmt.Fprintf(&p.out, " next in %s", time.Duration(next-p.now))
	}
	p.out.WriteString("\n")
}
