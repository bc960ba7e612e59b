package loadreport

import "sync"

// What clients can make up (names of clusters, localities, categories, metrics, endpoints) takes memory
// until the control plane has been sent it. A part that several clients report is charged to the first.

const (
	// partBytes is what a part takes in addition to its texts.
	partBytes = 256
	// mostOfIdentity is what the parts of one identity may take together, and mostOfAll those of all, in
	// bytes. 100,000 localities take 30 MB.
	mostOfIdentity = 64 << 20
	mostOfAll      = 512 << 20
)

// budget is the memory of all sums. Its lock comes last.
type budget struct {
	ofIdentity, ofAll int

	mu       sync.Mutex
	used     int
	accounts map[any]*account
}

// account is what one identity uses.
type account struct {
	of   *budget
	key  any
	free bool // nothing is refused
	// used and clients are guarded by budget.mu.
	used, clients int
}

// charge is what a part takes.
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

func (b *budget) leave(a *account) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a.clients--
	b.forget(a)
}

// forget forgets an account that is not used. The caller holds mu.
func (b *budget) forget(a *account) {
	if a.clients == 0 && a.used == 0 && b.accounts[a.key] == a {
		delete(b.accounts, a.key)
	}
}

// charge charges a part with texts of so many bytes, unless there is no room for it.
func (a *account) charge(texts int) (charge, bool) {
	n := partBytes + texts
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
