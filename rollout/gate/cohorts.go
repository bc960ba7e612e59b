package gate

const (
	// maxCohorts bounds the number of cohorts. Clients of all further ones share otherCohort.
	maxCohorts = 64
	// maxCohortsOfOne is how many cohorts one identity or address can start. Clients can invent cohorts, which must
	// not displace real ones.
	maxCohortsOfOne = 16
)

// otherCohort is the cohort of all other clients.
const otherCohort = "(other)"

// cohorts counts the clients of each cohort.
type cohorts struct {
	clients   map[string]int
	startedBy map[string]string // the who that started a cohort, by cohort
	started   map[string]int    // the number of started cohorts, by who
}

func newCohorts() cohorts {
	return cohorts{map[string]int{}, map[string]string{}, map[string]int{}}
}

// join counts a client, and returns its cohort.
func (c *cohorts) join(cohort, who string) string {
	if c.clients[cohort] == 0 && (len(c.clients) >= maxCohorts || c.started[who] >= maxCohortsOfOne) {
		cohort = otherCohort
	}
	if c.clients[cohort]++; c.clients[cohort] == 1 && cohort != otherCohort {
		c.startedBy[cohort] = who
		c.started[who]++
	}
	return cohort
}

// leave removes a client from its cohort's count.
func (c *cohorts) leave(cohort string) {
	if c.clients[cohort]--; c.clients[cohort] > 0 {
		return
	}
	delete(c.clients, cohort)
	who, ok := c.startedBy[cohort]
	if !ok {
		return
	}
	delete(c.startedBy, cohort)
	if c.started[who]--; c.started[who] == 0 {
		delete(c.started, who)
	}
}
