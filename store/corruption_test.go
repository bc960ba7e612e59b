package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// corruption is one way to damage a file.
type corruption struct {
	name   string
	damage func(t *testing.T, r *rand.Rand, path string, content []byte)
	// otherKey: the file is opened with another key.
	otherKey bool
}

func overwrite(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, fileMode); err != nil {
		t.Fatal(err)
	}
}

var corruptions = []corruption{
	{name: "a bit", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		overwrite(t, path, b)
	}},
	{name: "many bits", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		for range 1 + r.IntN(200) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		overwrite(t, path, b)
	}},
	{name: "a bit in the head of a page", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		at := r.IntN(len(b)/4096)*4096 + r.IntN(64)
		b[at] ^= 1 << r.IntN(8)
		overwrite(t, path, b)
	}},
	{name: "cut off", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		overwrite(t, path, b[:r.IntN(len(b))])
	}},
	{name: "zeroes", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		at := r.IntN(len(b))
		clear(b[at:min(len(b), at+r.IntN(8192))])
		overwrite(t, path, b)
	}},
	{name: "swapped pages", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		const page = 4096
		x, y := r.IntN(len(b)/page)*page, r.IntN(len(b)/page)*page
		other := append([]byte(nil), b[x:x+page]...)
		copy(b[x:], b[y:y+page])
		copy(b[y:], other)
		overwrite(t, path, b)
	}},
	{name: "swapped records", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		overwrite(t, path, b)
		db, err := bolt.Open(path, fileMode, &bolt.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error {
			records := tx.Bucket(recordsBucket)
			var keys, values [][]byte
			_ = records.ForEach(func(k, v []byte) error {
				keys, values = append(keys, append([]byte(nil), k...)), append(values, append([]byte(nil), v...))
				return nil
			})
			x, y := r.IntN(len(keys)), r.IntN(len(keys))
			return errors.Join(records.Put(keys[x], values[y]), records.Put(keys[y], values[x]))
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
	}},
	{name: "a page twice", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		const page = 4096
		x, y := r.IntN(len(b)/page)*page, r.IntN(len(b)/page)*page
		copy(b[y:y+page], b[x:])
		overwrite(t, path, b)
	}},
	{name: "other bytes from somewhere on", damage: func(t *testing.T, r *rand.Rand, path string, b []byte) {
		for i := r.IntN(len(b)); i < len(b); i++ {
			b[i] = byte(r.Uint32())
		}
		overwrite(t, path, b)
	}},
	{name: "another key", otherKey: true, damage: func(t *testing.T, _ *rand.Rand, path string, b []byte) { overwrite(t, path, b) }},
}

// noteAll notes all names and members.
func noteAll(s *Store, names int, version func(string) string) {
	s.Note("cp", func(n *Notes) {
		for i := range names {
			name := fmt.Sprint("entry", i)
			n.Entry(entry(name), resource(name, version(name)))
			name = fmt.Sprint("member", i)
			n.Member(wildcard(), name, resource(name, version(name)))
		}
		n.Whole(wildcard(), false)
	})
}

func fileContent(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// contentOf returns a file in which all records are where they belong.
func contentOf(t testing.TB, path string, o Options, names int, version func(string) string) []byte {
	t.Helper()
	s := open(t, path, o)
	noteAll(s, names, version)
	closed(t, s)
	return fileContent(t, path)
}

// journaledContentOf returns a file of which the newest state is in the journal, and an older one where it belongs.
func journaledContentOf(t testing.TB, path string, o Options, names int, version func(string) string) []byte {
	t.Helper()
	contentOf(t, path, o, names, func(string) string { return "old" })
	s := open(t, path, o)
	noteAll(s, names, version)
	s.Flush(time.Minute)
	// The newest transaction may be damaged, and then the one before it counts. So it has something else.
	s.Note("cp", func(n *Notes) { n.Entry(entry("other"), resource("other", "1")) })
	s.Flush(time.Minute)
	content := fileContent(t, path)
	if s.journal.empty() {
		t.Fatal("there is no journal")
	}
	closed(t, s)
	return content
}

// saysMissing matches the log of a store in which something is missing.
var saysMissing = regexp.MustCompile(`level=(?:ERROR|WARN) msg="(the file of the store is empty|the store cannot be used and was set aside|the store could not be used any more|a record in the store cannot be read|the newest state in the store cannot be read|the store could not be read)`)

// missingOf returns how many of the names and members of noteAll the store does not have. Those that it has must be what was noted.
func missingOf(t testing.TB, where string, s *Store, names int, version func(string) string) (missing int) {
	t.Helper()
	check := func(name string, r *Record) {
		switch {
		case r == nil:
			missing++
		case r.Resource.Version() != version(name) || r.Resource.Name() != name || r.Resource.Hash() != resource(name, "").Hash():
			t.Fatalf("%s: %s is %+v", where, name, r.Resource.Spec())
		}
	}
	set := s.Set(wildcard())
	members := map[string]*Record{}
	for _, r := range set.Members {
		members[r.Member] = r
	}
	for i := range names {
		name := fmt.Sprint("entry", i)
		check(name, s.Entry(entry(name)))
		name = fmt.Sprint("member", i)
		check(name, members[name])
	}
	if set.Whole() && len(members) != names {
		t.Fatalf("%s: a set with %d of %d members counts as whole", where, len(members), names)
	}
	return missing
}

// For any damage to the file, the relay starts, serves only resources that were stored under the requested name, and
// logs that something is missing.
func TestACorruptFileGivesNoWrongResource(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 100
	}
	const names = 200
	version := func(name string) string { return "version of " + name }
	for kind, key := range keysToTest(t) {
		dir := t.TempDir()
		path, f := filepath.Join(dir, "db"), &fake{}
		o := f.options()
		o.Key = key
		contents := [2][]byte{contentOf(t, path, o, names, version), journaledContentOf(t, path, o, names, version)}
		other := newKey(t)
		asides, lost := 0, 0
		for i := range n / 2 {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			c := corruptions[i%len(corruptions)]
			where := fmt.Sprintf("%s, corruption %d (%s)", kind, i, c.name)
			c.damage(t, r, path, append([]byte(nil), contents[i/len(corruptions)%2]...))
			log := &fake{}
			o.Log, o.Key = log.options().Log, key
			if c.otherKey {
				o.Key = other
			}
			s := open(t, path, o)
			missing := missingOf(t, where, s, names, version)
			if missing > 0 {
				lost++
			}
			if missing > 0 && !saysMissing.MatchString(log.lines()) {
				t.Fatalf("%s: %d records are missing, and the log does not say so:\n%s", where, missing, log.lines())
			}
			if c.otherKey && (missing != 2*names || !strings.Contains(log.lines(), "key")) {
				t.Fatalf("%s: %d records are missing, want all %d; the log says\n%s", where, missing, 2*names, log.lines())
			}
			// And it is written to as ever.
			s.Note("cp", func(n *Notes) {
				for i := range names {
					name := fmt.Sprint("entry", i)
					n.Entry(entry(name), resource(name, "2"))
				}
			})
			closed(t, s)
			aside, err := filepath.Glob(path + ".aside-*")
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range aside {
				asides++
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		}
		if asides == 0 || lost == asides || lost == 0 {
			t.Errorf("%s: %d files were set aside, and %d lost something: the test does not find what it is for", kind, asides, lost)
		}
	}
}
