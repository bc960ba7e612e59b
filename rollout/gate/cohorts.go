package gate

const (
	// maxCohorts is from how many cohorts on all others are one.
	maxCohorts = 64
	// maxCohortsOfOne is how many of them the same identity or address begins: clients can make up any
	// number, and those must not take the places of real ones.
	maxCohortsOfOne = 16
)

// otherCohort is that of all others.
const otherCohort = "(other)"

// cohorts counts the clients of each cohort.
type cohorts struct {
	clients map[string]int
	beganBy map[string]string // by cohort
	began   map[string]int    // by who began them
}

func newCohorts() cohorts {
	return cohorts{map[string]int{}, map[string]string{}, map[string]int{}}
}

// join counts a client, and returns its cohort.
func (c *cohorts) join(cohort, who string) string {
	if c.clients[cohort] == 0 && (len(c.clients) >= maxCohorts || c.began[who] >= maxCohortsOfOne) {
		cohort = otherCohort
	}
	if c.clients[cohort]++; c.clients[cohort] == 1 && cohort != otherCohort {
		c.beganBy[cohort] = who
		c.began[who]++
	}
	return cohort
}

// leave ends the counting of a client.
func (c *cohorts) leave(cohort string) {
	if c.clients[cohort]--; c.clients[cohort] > 0 {
		return
	}
	delete(c.clients, cohort)
	who, ok := c.beganBy[cohort]
	if !ok {
		return
	}
	delete(c.beganBy, cohort)
	if c.began[who]--; c.began[who] == 0 {
		delete(c.began, who)
	}
}
