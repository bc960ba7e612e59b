package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// FuzzDamagedFile damages a store's file, before the relay opens it or while it is open. The store returns of each name
// what was noted of it, or nothing. A set that lacks members is not whole, and the log says that something is missing.
// Then the store can be written to as ever.
func FuzzDamagedFile(f *testing.F) {
	const names = 20
	version := func(name string) string { return "version of " + name }
	var keys []*Key
	var contents [][]byte
	for _, key := range []*Key{nil, newKey(f)} {
		o, dir := (&fake{}).options(), f.TempDir()
		o.Key = key
		contents = append(contents,
			withoutRoom(f, contentOf(f, filepath.Join(dir, "settled"), o, names, version)),
			withoutRoom(f, journaledContentOf(f, filepath.Join(dir, "journaled"), o, names, version)))
		keys = append(keys, key, key)
	}
	for i := range contents {
		for kind := range numDamages {
			f.Add(uint8(i), kind%2 == 0, []byte{kind, 0, 0x30, 0x11, 7})
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, whileOpen bool, script []byte) {
		i := int(which) % len(contents)
		path, log := filepath.Join(t.TempDir(), "db"), &fake{}
		o := log.options()
		o.Key = keys[i]
		content := damaged(contents[i], script)
		overwrite(t, path, content)
		if whileOpen {
			overwrite(t, path, contents[i])
		}
		s := open(t, path, o)
		if whileOpen {
			// The clock of the file system may be too coarse to tell this write from the store's own.
			err := errors.Join(inPlace(path, content), os.Truncate(path, int64(len(content))), os.Chtimes(path, time.Time{}, time.Now().Add(time.Second)))
			if err != nil {
				t.Fatal(err)
			}
		}
		missingOf(t, "the damaged file", s, names, version)
		s.Note("cp", func(n *Notes) { n.Entry(entry("new"), resource("new", "1")) })
		closed(t, s)
		s = open(t, path, o)
		defer closed(t, s)
		if missing := missingOf(t, "the file after it", s, names, version); missing > 0 && !saysMissing.MatchString(log.lines()) {
			t.Fatalf("%d records are missing, and the log does not say so:\n%s", missing, log.lines())
		}
		if r := s.Entry(entry("new")); r == nil || r.Resource.Version() != "1" {
			t.Fatalf("what was noted since is %v; the log says\n%s", r, log.lines())
		}
	})
}

// withoutRoom returns a database without the space after its last page.
func withoutRoom(t testing.TB, content []byte) []byte {
	t.Helper()
	m, _, err := newestMeta(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return content[:m.size*m.pageSize]
}

// The kinds of damage.
const (
	damageBit byte = iota
	damageByte
	damageHead // a byte of the head of a page, or of its first elements
	damageZeros
	damageCut
	damageCopy // a page in the place of another
	damageNumber
	numDamages
)

// damaged returns a copy of a database with damage. The script is a sequence of a kind, a page, a position in it, and a value.
func damaged(content, script []byte) []byte {
	const step, page, heads = 5, 1 << 12, 1 << 7
	content = bytes.Clone(content)
	for ; len(script) >= step && len(content) >= page; script = script[step:] {
		value := script[4]
		base := int(script[1]) % (len(content) / page) * page
		at := base + int(binary.BigEndian.Uint16(script[2:]))%page
		switch script[0] % numDamages {
		case damageBit:
			content[at] ^= 1 << (value % 8)
		case damageByte:
			content[at] = value
		case damageHead:
			content[base+at%heads] = value
		case damageZeros:
			clear(content[at:min(len(content), at+32*int(value))])
		case damageCut:
			content = content[:at]
		case damageCopy:
			copy(content[base:base+page], content[int(value)%(len(content)/page)*page:])
		case damageNumber:
			order.PutUint64(content[at&^7:], uint64(value))
		}
	}
	return content
}

// FuzzRecord reads any bytes as a record. What it reads, it writes so that it reads the same again.
func FuzzRecord(f *testing.F) {
	for _, r := range []Record{
		{Topic: entry("a"), Resource: resource("a", "1"), Time: time.Unix(1, 2), Server: "cp:1"},
		{Topic: entry("alias"), Resource: resource("own", "7").Aliased()},
		{Topic: wildcard(), Set: true, Time: time.Unix(-1, 0)},
		{Topic: wildcard(), Member: "m", Resource: cache.NewResource(cache.Spec{
			Name: "r", Version: "2", TypeURL: xdstype.Locator, Value: []byte{0x12, 1, 'x'}, Redirect: "xdstp://other/t/x", Constraints: "\x0a\x00", Extra: []byte{0x3a, 0},
		})},
	} {
		f.Add(r.appendTo(nil))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text)
		if err != nil || r.Time.IsZero() { // each record has a time
			return
		}
		again, err := decode(r.appendTo(nil))
		if err != nil || !again.is(r) || !again.same(r) || !again.Time.Equal(r.Time) {
			t.Fatalf("%x is %v, which reads as %v (%v)", text, r, again, err)
		}
		if r.Resource != nil && !bytes.Equal(again.Resource.Value(), r.Resource.Value()) {
			t.Fatalf("%x has the value %x, which reads as %x", text, r.Resource.Value(), again.Resource.Value())
		}
	})
}

// FuzzImport imports any text. What it has imported, the store exports, and another store imports from that the same.
func FuzzImport(f *testing.F) {
	export := exported(f, nil, func(n *Notes) {
		n.Entry(entry("a"), resource("a", "1"))
		n.Member(wildcard(), "m", resource("m", "1"))
		n.Whole(wildcard(), false)
	})
	f.Add(export)
	f.Add(backwards(export))
	f.Add(strings.Repeat(strings.ReplaceAll(export, "\n", " "), 2))
	f.Add(`{"format":"` + exportFormat + `","encrypted":true}`)
	f.Add(`{"format":"` + exportFormat + `"}{"key":"eA==","record":""}`)
	f.Fuzz(func(t *testing.T, text string) {
		dir, log := t.TempDir(), (&fake{}).options().Log
		imported := func(name, text string) (done Imported, export string, err error) {
			path := filepath.Join(dir, name)
			done, err = Import(path, nil, strings.NewReader(text), log)
			if err != nil {
				return done, "", err
			}
			s, err := OpenReadOnly(path, nil, log)
			if err != nil {
				t.Fatal(err)
			}
			defer closed(t, s)
			var out strings.Builder
			if _, unreadable, err := s.Export(&out); unreadable > 0 || err != nil {
				t.Fatalf("%d of the imported records cannot be read (%v)", unreadable, err)
			}
			return done, out.String(), nil
		}
		done, first, err := imported("first", text)
		if err != nil {
			return
		}
		if n := strings.Count(first, "\n") - 1; n > done.Records {
			t.Fatalf("%d records were imported, and there are %d", done.Records, n)
		}
		if _, second, err := imported("second", first); err != nil || !slices.Equal(linesOf(second), linesOf(first)) {
			t.Fatalf("the export of what was imported is\n%s\nand once more\n%s\n%v", first, second, err)
		}
	})
}

func linesOf(text string) []string { return slices.Sorted(strings.Lines(text)) }

// FuzzKeyFile reads any text as a key file. What one key has sealed, it opens, and no other key.
func FuzzKeyFile(f *testing.F) {
	for range 2 {
		text, err := NewKey()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"records":{},"names":{}}`))
	other := newKey(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		k, err := ParseKey(text)
		if err != nil {
			return
		}
		content := []byte("content")
		key, err := k.hash(content)
		if err != nil || len(key) != hashLen {
			t.Fatalf("the hash is %x (%v)", key, err)
		}
		stored, err := k.seal(key, content)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := k.open(key, stored); err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%q is opened as %q (%v)", content, got, err)
		}
		if _, err := other.open(key, stored); err == nil {
			t.Fatal("another key opens it")
		}
		if _, err := k.open(append(key, 0), stored); err == nil {
			t.Fatal("it is opened in the place of another record")
		}
	})
}
