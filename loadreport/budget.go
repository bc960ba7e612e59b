package loadreport

import "sync"

// The names of clusters, localities, categories, metrics and endpoints come from clients. They take memory until the
// relay has sent them to the control plane. A part that several clients report is charged to the first one.
//
// A part is charged what it takes in the sum, and what it takes in a message that waits to be sent.

const (
	// The memory of each part in addition to its texts. A cluster has room for its first localities, and a locality or
	// endpoint for its first metrics.
	clusterBytes = 1024
	rowBytes     = 640
	dropBytes    = 448
	metricBytes  = 448
	stateBytes   = 256
	// mostOfIdentity bounds the memory of the parts of one identity, and mostOfAll that of all parts, in bytes.
	// 100,000 localities take 64 MB.
	mostOfIdentity = 64 << 20
	mostOfAll      = 512 << 20
)

// budget accounts for the memory of all sums. Its lock is the last in the order of locks.
type budget struct {
	ofIdentity, ofAll int

	mu       sync.Mutex
	used     int
	accounts map[any]*account
}

// account is the usage of one identity.
type account struct {
	of   *budget
	key  any
	free bool // it has no limit
	// used and clients are guarded by budget.mu.
	used, clients int
}

// charge is the memory that a part takes.
type charge struct {
	account *account
	bytes   int
}

func newBudget() *budget {
	return &budget{ofIdentity: mostOfIdentity, ofAll: mostOfAll, accounts: map[any]*account{}}
}

// join returns the account of an identity for one more client, until leave.
func (b *budget) join(key any) *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.accounts[key]
	if a == nil {
		a = &account{of: b, key: key}
		b.accounts[key] = a
	}
	a.clients++
	return a
}

// held returns what an account uses, and what all do.
func (b *budget) held(key any) (own, all int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.accounts[key]; a != nil {
		own = int64(a.used)
	}
	return own, int64(b.used)
}

func (b *budget) leave(a *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a.clients--
	b.forget(a)
}

// forget removes an account that is not used. The caller holds mu.
func (b *budget) forget(a *account) {
	if a.clients == 0 && a.used == 0 && b.accounts[a.key] == a {
		delete(b.accounts, a.key)
	}
}

// charge charges a part, which takes so many bytes in addition to its texts. It returns false if there is no room for it.
func (a *account) charge(part, texts int) (charge, bool) {
	n := part + texts + texts/4 // an allocation may be so much larger than what it is for
	b := a.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if !a.free && (a.used+n > b.ofIdentity || b.used+n > b.ofAll) {
		return charge{}, false
	}
	a.used += n
	b.used += n
	return charge{a, n}, true
}

func (c *charge) release() {
	if c.account == nil {
		return
	}
	b := c.account.of
	b.mu.Lock()
	defer b.mu.Unlock()
	c.account.used -= c.bytes
	b.used -= c.bytes
	b.forget(c.account)
	c.account = nil
}
