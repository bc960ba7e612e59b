package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// Record is the stored state of one resource, or of a set.
type Record struct {
	// Topic is the topic of the name, or of the set.
	Topic cache.Key
	// Member is the key of the set's member. Set: the record is the set's own.
	Member string
	Set    bool
	// Resource is nil in the record of a set, and for a member that may not be stored.
	Resource *cache.Resource
	// Time is when the resource arrived, and Server the server that sent it.
	Time   time.Time
	Server string
}

// isMember reports whether the record is that of a set's member.
func (r *Record) isMember() bool { return !r.Set && r.Topic.IsSet() }

// These are the first bytes of record keys.
const (
	entryKind  = 'e'
	setKind    = 's'
	memberKind = 'm'
)

// hashLen is the length of a hash in a key.
const hashLen = 16

// keys makes the keys of records.
type keys struct {
	// hash returns hashLen bytes.
	hash func(text []byte) ([]byte, error)
}

// of returns the key of a record.
func (k keys) of(r *Record) ([]byte, error) {
	topic, err := k.hash(topicText(r.Topic))
	if err != nil {
		return nil, err
	}
	switch {
	case r.Set:
		return append([]byte{setKind}, topic...), nil
	case !r.Topic.IsSet():
		return append([]byte{entryKind}, topic...), nil
	}
	return k.member(topic, r.Member)
}

func (k keys) member(topic []byte, name string) ([]byte, error) {
	member, err := k.hash(append([]byte{memberKind}, name...))
	if err != nil {
		return nil, err
	}
	return append(append([]byte{memberKind}, topic...), member...), nil
}

// topicText returns a text that is different for different topics.
func topicText(k cache.Key) []byte {
	b := make([]byte, 1, 64+len(k.Scope.Partition)+len(k.TypeURL)+len(k.Name))
	b[0] = entryKind
	for _, part := range []string{k.Scope.Authority, k.Scope.Partition, k.Scope.Params, k.TypeURL, k.Name} {
		b = binary.AppendUvarint(b, uint64(len(part)))
		b = append(b, part...)
	}
	if k.Scope.OldStyle {
		return append(b, 1)
	}
	return append(b, 0)
}

// The fields of an encoded record.
const (
	fieldAuthority protowire.Number = iota + 1
	fieldPartition
	fieldParams
	fieldOldStyle
	fieldTypeURL
	fieldName
	fieldMember
	fieldSet
	fieldTime
	fieldServer
	fieldHasResource
	fieldAlias
	fieldResourceType // if it differs from the topic's type
	fieldResourceName
	fieldResourceVersion
	fieldExtra
	fieldConstraints
	fieldRedirect
	fieldValue
)

// appendTo appends the encoded record, without its checksum.
func (r *Record) appendTo(b []byte) []byte {
	var s cache.Spec
	if r.Resource != nil {
		s = r.Resource.Spec()
	}
	text := func(field protowire.Number, value string) {
		if value != "" {
			b = wire.AppendString(b, field, value)
		}
	}
	flag := func(field protowire.Number, is bool) {
		if is {
			b = protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), 1)
		}
	}
	text(fieldAuthority, r.Topic.Scope.Authority)
	text(fieldPartition, r.Topic.Scope.Partition)
	text(fieldParams, r.Topic.Scope.Params)
	flag(fieldOldStyle, r.Topic.Scope.OldStyle)
	text(fieldTypeURL, r.Topic.TypeURL)
	text(fieldName, r.Topic.Name)
	text(fieldMember, r.Member)
	flag(fieldSet, r.Set)
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldTime, protowire.VarintType), uint64(r.Time.UnixNano()))
	text(fieldServer, r.Server)
	if r.Resource == nil {
		return b
	}
	flag(fieldHasResource, true)
	flag(fieldAlias, r.Resource.Alias())
	if s.TypeURL != r.Topic.TypeURL {
		text(fieldResourceType, s.TypeURL)
	}
	text(fieldResourceName, s.Name)
	text(fieldResourceVersion, s.Version)
	text(fieldExtra, string(s.Extra))
	text(fieldConstraints, s.Constraints)
	text(fieldRedirect, s.Redirect)
	b = protowire.AppendTag(b, fieldValue, protowire.BytesType)
	return protowire.AppendBytes(b, s.Value)
}

var errRecord = errors.New("it is not a record")

// decode decodes a record that appendTo encoded.
func decode(b []byte) (*Record, error) {
	var r Record
	var s cache.Spec
	var has, alias bool
	for len(b) > 0 {
		field, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, errRecord
		}
		b = b[n:]
		var value []byte
		var number uint64
		switch typ {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(b)
		default:
			return nil, errRecord
		}
		if n < 0 {
			return nil, errRecord
		}
		b = b[n:]
		switch field {
		case fieldAuthority:
			r.Topic.Scope.Authority = string(value)
		case fieldPartition:
			r.Topic.Scope.Partition = string(value)
		case fieldParams:
			r.Topic.Scope.Params = string(value)
		case fieldOldStyle:
			r.Topic.Scope.OldStyle = number != 0
		case fieldTypeURL:
			r.Topic.TypeURL = string(value)
		case fieldName:
			r.Topic.Name = string(value)
		case fieldMember:
			r.Member = string(value)
		case fieldSet:
			r.Set = number != 0
		case fieldTime:
			r.Time = time.Unix(0, int64(number))
		case fieldServer:
			r.Server = string(value)
		case fieldHasResource:
			has = number != 0
		case fieldAlias:
			alias = number != 0
		case fieldResourceType:
			s.TypeURL = string(value)
		case fieldResourceName:
			s.Name = string(value)
		case fieldResourceVersion:
			s.Version = string(value)
		case fieldExtra:
			s.Extra = value
		case fieldConstraints:
			s.Constraints = string(value)
		case fieldRedirect:
			s.Redirect = string(value)
		case fieldValue:
			s.Value = value
		default: // a field of a later version
		}
	}
	if has {
		if s.TypeURL == "" {
			s.TypeURL = r.Topic.TypeURL
		}
		r.Resource = cache.NewResource(s)
		if alias {
			r.Resource = r.Resource.Aliased()
		}
	}
	return &r, nil
}

// is reports whether a record that was found under wanted's key is the wanted one.
func (r *Record) is(wanted *Record) bool {
	return r.Topic == wanted.Topic && r.Member == wanted.Member && r.Set == wanted.Set
}

// same reports whether two records of the same key have the same content.
func (r *Record) same(o *Record) bool {
	if r.Server != o.Server || (r.Resource == nil) != (o.Resource == nil) {
		return false
	}
	return r.Resource == nil || r.Resource.Hash() == o.Resource.Hash() && r.Resource.Version() == o.Resource.Version() &&
		r.Resource.Name() == o.Resource.Name() && r.Resource.Alias() == o.Resource.Alias()
}

// String names the record, for log lines.
func (r *Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", r.Topic.Scope, r.Topic.TypeURL, r.Topic.Name)
	if r.Member != "" {
		fmt.Fprintf(&b, " (%s)", r.Member)
	}
	return b.String()
}

// sealed encrypts records, or adds checksums to them.
type sealed interface {
	// seal does not retain the content.
	seal(key, content []byte) ([]byte, error)
	open(key, stored []byte) ([]byte, error)
}

// checksums implements sealed without encryption.
type checksums struct{}

// checksumLen is the length of a checksum.
const checksumLen = 8

var errChecksum = errors.New("its checksum is wrong")

func (checksums) seal(key, content []byte) ([]byte, error) {
	b := make([]byte, 0, len(content)+checksumLen)
	return binary.BigEndian.AppendUint64(append(b, content...), checksum(key, content)), nil
}

func (checksums) open(key, stored []byte) ([]byte, error) {
	n := len(stored) - checksumLen
	if n < 0 || binary.BigEndian.Uint64(stored[n:]) != checksum(key, stored[:n]) {
		return nil, errChecksum
	}
	return stored[:n], nil
}

func checksum(key, content []byte) uint64 {
	h := xxhash.New()
	_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(key))))
	_, _ = h.Write(key)
	_, _ = h.Write(content)
	return h.Sum64()
}
