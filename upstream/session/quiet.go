package session

// Quiet is what of a type the control plane does not answer: names and sets without an answer in time, and names that are
// left out of requests (see strict.go).
type Quiet struct {
	Topics  int // how many there are
	LeftOut int // those that are left out
	// Newest has the names of the newest, and Answered of those that were answered since Quiet was last called, at most
	// mostQuiet of each.
	Newest, Answered []string
}

const mostQuiet = 5

// hush notes that subscriptions have no answer in time, or are left out.
func (c *core) hush(subs []*subscription) {
	for _, sub := range subs {
		if !sub.quiet {
			sub.quiet = true
			c.quiet = append(c.quiet, sub)
		}
	}
}

// leaveOut notes that the parked names are left out until the next series of trials ends.
func (n *Names) leaveOut(parked []*subscription) {
	for _, sub := range n.quiet {
		sub.leftOut = false
	}
	n.hush(parked)
	for _, sub := range parked {
		sub.leftOut = true
	}
}

// IsQuiet reports whether there may be something that the control plane does not answer.
func (t *Topics) IsQuiet() (quiet bool) {
	for k := range t.each {
		quiet = quiet || len(k.common().quiet) > 0
	}
	return quiet
}

// Quiet returns what the control plane does not answer. Its time depends on how much that is.
func (t *Topics) Quiet() (q Quiet) {
	for k := range t.each {
		c := k.common()
		kept := c.quiet[:0]
		for i, sub := range c.quiet {
			wanted := sub.wanted && k.get(sub.name) == sub
			sub.quiet = wanted && (sub.leftOut || !sub.answered || sub.isSilent())
			switch {
			case !sub.quiet:
				if sub.leftOut = false; wanted && i < c.quietShown && len(q.Answered) < mostQuiet {
					q.Answered = append(q.Answered, sub.name)
				}
				continue
			case sub.leftOut:
				q.LeftOut++
			}
			kept = append(kept, sub)
		}
		clear(c.quiet[len(kept):]) // otherwise the slice's memory would keep them
		if c.quiet, c.quietShown = kept, len(kept); len(kept) == 0 {
			c.quiet = nil
		}
		q.Topics += len(kept)
		for i := len(kept) - 1; i >= 0 && len(q.Newest) < mostQuiet; i-- {
			q.Newest = append(q.Newest, kept[i].name)
		}
	}
	return q
}
