package upstream

import (
	"testing"
	"time"
)

func TestARepeatedNACKWaitsLongerAndLonger(t *testing.T) {
	began := time.Unix(1000, 0)
	const ms = time.Millisecond
	for _, test := range []struct {
		name      string
		responses []string // versions, and what is bad; each comes when the last answer was sent, but for those with a +
		want      []time.Duration
	}{
		{"acknowledged", []string{"1", "1", "2"}, []time.Duration{0, 0, 0}},
		{"rejected once, then another version", []string{"1 bad", "2 bad", "3 bad"}, []time.Duration{0, 0, 0}},
		{"the same again and again", []string{"1 bad", "1 bad", "1 bad", "1 bad", "1 bad", "1 bad", "1 bad", "1 bad", "1 bad", "1 bad"},
			[]time.Duration{0, 10 * ms, 20 * ms, 40 * ms, 80 * ms, 160 * ms, 320 * ms, 640 * ms, time.Second, time.Second}},
		{"another reason", []string{"1 bad", "1 worse", "1 worse"}, []time.Duration{0, 0, 10 * ms}},
		{"in another order", []string{"1resources[0] \"a\" is bad\nresources[3] \"b\" is bad", "1resources[1] \"b\" is bad\nresources[7] \"a\" is bad"}, []time.Duration{0, 10 * ms}},
		{"another resource", []string{"1resources[0] \"a\" is bad", "1resources[0] \"b\" is bad"}, []time.Duration{0, 0}},
		{"more than there is room for", []string{"1resources[0] \"a\" is bad\nand 9 more", "1resources[0] \"b\" is bad\nand 8 more"}, []time.Duration{0, 10 * ms}},
		{"good in between", []string{"1 bad", "1 bad", "1 bad", "2", "1 bad", "1 bad"}, []time.Duration{0, 10 * ms, 20 * ms, 0, 0, 10 * ms}},
		{"sent before the NACK was", []string{"1 bad", "1 bad", "+1 bad"}, []time.Duration{0, 10 * ms, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c calm
			now := began
			for i, r := range test.responses {
				early := r[0] == '+'
				if early {
					r = r[1:]
				} else if now.Before(c.until) {
					now = c.until
				}
				c.answered(now, r[:1], r[1:])
				if got := max(0, c.until.Sub(now)); got != test.want[i] {
					t.Errorf("the answer to response %d (%s) waits for %v, want %v", i, r, got, test.want[i])
				}
			}
		})
	}
}
