package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
)

// bbolt maps its file into memory and trusts it: a page that refers to itself, or beyond the end of the file, crashes
// the process. So the store verifies the file first: every reachable page is valid, is reached once, and contains its
// keys and values in order. The records' own checksums cover the values.
//
// The layout is bbolt's file format 2, in the byte order of the machines that the relay is built for.

const (
	pageHeader    = 16
	metaLen       = 64 // with its checksum, which is the last 8 bytes
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	noFreelist    = ^uint64(0)
	bucketHeader  = 16
	elementLen    = 16 // of a leaf and of a branch
	leastPage     = 1 << 9
	mostPage      = 1 << 16
	maxDepth      = 64
	manyFreePages = 0xFFFF // a freelist with more has the count in its first element

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10
	bucketFlag   = 0x01
)

// errNoStore is about a file without a beginning that this relay writes.
var errNoStore = errors.New("it is another file than a store of the relay, or its beginning is damaged: name the file that a relay has written as store.path")

var order = binary.LittleEndian

// meta describes the newest state of a file that was committed completely.
type meta struct {
	pageSize             uint64
	root, freelist, size uint64 // page numbers and a number of pages
	txid                 uint64
}

// verify returns what is wrong with the structure of a database. It reads the whole file. torn: the newest state
// cannot be read, but the one before it can.
func verify(f io.ReaderAt, size int64) (torn bool, err error) {
	m, metas, err := newestMeta(f, size)
	if err != nil {
		return false, err
	}
	return metas < 2, verifyState(f, size, m)
}

func verifyState(f io.ReaderAt, size int64, m meta) error {
	if m.size > uint64(size)/m.pageSize {
		return fmt.Errorf("it has %d bytes, and its %d pages of %d would have more: it was cut off", size, m.size, m.pageSize)
	}
	v := &verifier{file: f, meta: m, seen: make([]uint64, m.size/64+1)}
	if err := v.take(0, 2); err != nil {
		return err
	}
	if m.freelist != noFreelist {
		if err := v.freelist(); err != nil {
			return err
		}
	}
	return v.page(m.root, nil, nil, 0)
}

// newestMeta returns the newer of the file's two metas, and how many of them can be read. A crash during a write may
// have damaged one.
func newestMeta(f io.ReaderAt, size int64) (newest meta, found int, err error) {
	if size == 0 {
		return newest, 0, errors.New("it is empty")
	}
	for _, at := range []int64{0, 1 << 12, 1 << 13, 1 << 14, 1 << 16} {
		var b [pageHeader + metaLen]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			break
		}
		m, ok := parseMeta(b[pageHeader:])
		if !ok || at != 0 && m.pageSize != uint64(at) {
			continue
		}
		if found == 0 || m.txid > newest.txid {
			newest = m
		}
		found++
	}
	if found == 0 {
		return newest, 0, errNoStore
	}
	if newest.size < 3 || newest.root >= newest.size || newest.freelist != noFreelist && newest.freelist >= newest.size {
		return newest, found, errors.New("its beginning is damaged")
	}
	return newest, found, nil
}

func parseMeta(b []byte) (m meta, ok bool) {
	h := fnv.New64a()
	_, _ = h.Write(b[:metaLen-8])
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint64(b[metaLen-8:]) != h.Sum64() {
		return m, false
	}
	m = meta{
		pageSize: uint64(order.Uint32(b[8:])), root: order.Uint64(b[16:]), freelist: order.Uint64(b[32:]),
		size: order.Uint64(b[40:]), txid: order.Uint64(b[48:]),
	}
	return m, m.pageSize >= leastPage && m.pageSize <= mostPage && m.pageSize&(m.pageSize-1) == 0
}

type verifier struct {
	file io.ReaderAt
	meta
	seen []uint64 // a bit for each page
}

// take marks pages as used. It returns an error if they are used already.
func (v *verifier) take(first, n uint64) error {
	if first >= v.size || n > v.size-first {
		return fmt.Errorf("page %d is beyond the end", first)
	}
	for id := first; id < first+n; id++ {
		if v.seen[id/64]&(1<<(id%64)) != 0 {
			return fmt.Errorf("page %d is used twice", id)
		}
		v.seen[id/64] |= 1 << (id % 64)
	}
	return nil
}

// read returns a page with its continuation pages, and marks them as used.
func (v *verifier) read(id uint64) (b []byte, err error) {
	if id < 2 || id >= v.size {
		return nil, fmt.Errorf("page %d is beyond the end", id)
	}
	b = make([]byte, v.pageSize)
	if _, err := v.file.ReadAt(b, int64(id*v.pageSize)); err != nil {
		return nil, err
	}
	if order.Uint64(b) != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, order.Uint64(b))
	}
	more := uint64(order.Uint32(b[12:]))
	if err := v.take(id, 1+more); err != nil {
		return nil, err
	}
	if more > 0 {
		b = make([]byte, (1+more)*v.pageSize)
		if _, err := v.file.ReadAt(b, int64(id*v.pageSize)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (v *verifier) freelist() error {
	b, err := v.read(v.meta.freelist)
	if err != nil {
		return err
	}
	count, ids := uint64(order.Uint16(b[10:])), b[pageHeader:]
	if order.Uint16(b[8:]) != freelistPage {
		return errors.New("its list of free pages is damaged")
	}
	if count == manyFreePages {
		count, ids = order.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids))/8 {
		return errors.New("its list of free pages is too short")
	}
	for last := uint64(1); count > 0; count, ids = count-1, ids[8:] {
		id := order.Uint64(ids)
		if id <= last {
			return errors.New("its list of free pages is not in order")
		}
		if err := v.take(id, 1); err != nil {
			return err
		}
		last = id
	}
	return nil
}

// page verifies a page of a tree. Its keys must be at least low and less than high; nil means no bound.
func (v *verifier) page(id uint64, low, high []byte, depth int) error {
	if depth > maxDepth {
		return errors.New("its tree is too deep")
	}
	b, err := v.read(id)
	if err != nil {
		return err
	}
	return v.elements(b, id, low, high, depth)
}

// elements verifies the elements of a page, which may be nested in another page.
func (v *verifier) elements(b []byte, id uint64, low, high []byte, depth int) error {
	flags, count := order.Uint16(b[8:]), int(order.Uint16(b[10:]))
	bad := func(what string) error { return fmt.Errorf("page %d: %s", id, what) }
	if flags != branchPage && flags != leafPage {
		return bad("it is neither a branch nor a leaf")
	}
	if pageHeader+count*elementLen > len(b) {
		return bad("it has more elements than room")
	}
	if flags == branchPage && count == 0 {
		return bad("it is a branch without leaves")
	}
	keys := make([][]byte, 0, count+1)
	values := make([][]byte, 0, count)
	for i := range count {
		at := pageHeader + i*elementLen
		e := b[at : at+elementLen]
		var pos, keyLen, valueLen uint64
		if flags == leafPage {
			pos, keyLen, valueLen = uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		} else {
			pos, keyLen = uint64(order.Uint32(e)), uint64(order.Uint32(e[4:]))
		}
		from := uint64(at) + pos
		if from < uint64(pageHeader+count*elementLen) || from+keyLen+valueLen > uint64(len(b)) {
			return bad("an element is outside of it")
		}
		key := b[from : from+keyLen]
		switch {
		case len(key) == 0:
			return bad("a key is empty")
		case i > 0 && bytes.Compare(keys[i-1], key) >= 0:
			return bad("its keys are not in order")
		case low != nil && bytes.Compare(key, low) < 0, high != nil && bytes.Compare(key, high) >= 0:
			return bad("a key belongs elsewhere")
		}
		keys, values = append(keys, key), append(values, b[from+keyLen:from+keyLen+valueLen])
	}
	for i := range count {
		e := b[pageHeader+i*elementLen:]
		var err error
		if flags == leafPage {
			if order.Uint32(e)&bucketFlag != 0 {
				err = v.bucket(values[i], id, depth)
			}
		} else {
			next := high
			if i+1 < count {
				next = keys[i+1]
			}
			err = v.page(order.Uint64(e[8:]), slices.Clone(keys[i]), slices.Clone(next), depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket verifies a bucket: a tree of its own, or a page inside a value.
func (v *verifier) bucket(value []byte, id uint64, depth int) error {
	if len(value) < bucketHeader {
		return fmt.Errorf("page %d: a bucket is too short", id)
	}
	root := order.Uint64(value)
	if root != 0 {
		return v.page(root, nil, nil, depth+1)
	}
	if value = value[bucketHeader:]; len(value) < pageHeader || order.Uint16(value[8:]) != leafPage {
		return fmt.Errorf("page %d: a bucket in it is damaged", id)
	}
	return v.elements(value, id, nil, nil, depth+1)
}
