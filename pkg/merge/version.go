package merge

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
)

const (
	// versionPrefix starts merged versions. No resource version of a shard is like that.
	versionPrefix = "m1."
	// MaxShards is how many shards can be merged: versions of more would be too long.
	MaxShards = 128
	// numberBytes is the size of a shard's number, and of a version's checksum.
	numberBytes = 4
)

// ErrVersion says that a text is no merged version, though it begins like one.
var ErrVersion = errors.New("not a version of all shards: it was changed or cut off")

var versionEncoding = base64.RawURLEncoding.Strict()

// Position is how far one shard has been seen.
type Position struct {
	// Shard is the number of the shard.
	Shard uint32
	// Revision is a resource version of it.
	Revision uint64
}

// Vector says how far each shard has been seen: of one that it does not name, nothing.
// Positions are ordered by the shards' numbers. A Vector is never changed.
type Vector struct{ positions []Position }

// NumberOf returns the number by which versions know a shard, from the UID of its Shard
// object: one that was registered anew has another.
func NumberOf(uid string) uint32 {
	sum := sha256.Sum256([]byte(uid))
	return binary.BigEndian.Uint32(sum[:numberBytes])
}

// IsVersion reports whether a text claims to be a merged version.
func IsVersion(text string) bool { return strings.HasPrefix(text, versionPrefix) }

// MayHold reports whether a body may hold a merged version.
func MayContainVersion(body []byte) bool { return bytes.Contains(body, []byte(versionPrefix)) }

// ParseVersion returns the vector that a version holds. It fails with ErrVersion.
func ParseVersion(text string) (Vector, error) {
	encoded, ok := strings.CutPrefix(text, versionPrefix)
	if !ok || len(encoded) > base64.RawURLEncoding.EncodedLen((numberBytes+binary.MaxVarintLen64)*MaxShards+numberBytes) {
		return Vector{}, ErrVersion
	}
	raw, err := versionEncoding.DecodeString(encoded)
	if err != nil || len(raw) < numberBytes {
		return Vector{}, ErrVersion
	}
	raw, sum := raw[:len(raw)-numberBytes], raw[len(raw)-numberBytes:]
	if crc32.ChecksumIEEE(raw) != binary.BigEndian.Uint32(sum) {
		return Vector{}, ErrVersion
	}
	var v Vector
	for len(raw) > numberBytes {
		revision, read := binary.Uvarint(raw[numberBytes:])
		p := Position{Shard: binary.BigEndian.Uint32(raw), Revision: revision}
		if read <= 0 || p.Revision == 0 || len(v.positions) > 0 && v.positions[len(v.positions)-1].Shard >= p.Shard {
			return Vector{}, ErrVersion
		}
		v.positions = append(v.positions, p)
		raw = raw[numberBytes+read:]
	}
	if len(raw) > 0 || v.String() != text {
		return Vector{}, ErrVersion
	}
	return v, nil
}

// String returns the version, which ParseVersion takes.
func (v Vector) String() string {
	raw := make([]byte, 0, len(v.positions)*(numberBytes+binary.MaxVarintLen64)+numberBytes)
	for _, p := range v.positions {
		raw = binary.BigEndian.AppendUint32(raw, p.Shard)
		raw = binary.AppendUvarint(raw, p.Revision)
	}
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return versionPrefix + versionEncoding.EncodeToString(raw)
}

// Of returns the revision of a shard, and whether the vector has one.
func (v Vector) Of(shard uint32) (uint64, bool) {
	at, found := v.find(shard)
	if !found {
		return 0, false
	}
	return v.positions[at].Revision, true
}

// With returns the vector with the revision of one shard.
func (v Vector) With(shard uint32, revision uint64) Vector {
	at, found := v.find(shard)
	positions := slices.Clone(v.positions)
	if found {
		positions[at].Revision = revision
	} else {
		positions = slices.Insert(positions, at, Position{Shard: shard, Revision: revision})
	}
	return Vector{positions}
}

// Positions returns those of all shards that the vector has.
func (v Vector) Positions() []Position { return slices.Clone(v.positions) }

func (v Vector) find(shard uint32) (at int, found bool) {
	return slices.BinarySearchFunc(v.positions, shard, func(p Position, shard uint32) int { return cmp.Compare(p.Shard, shard) })
}

// OwnVersion returns what a resource version says to the shard of a number: its own part of
// a merged one, and all others as they are. It fails with ErrVersion, and with
// ErrOtherShards if the version has no part of the shard.
func OwnVersion(shard uint32, version string) (string, error) {
	if !IsVersion(version) {
		return version, nil
	}
	v, err := ParseVersion(version)
	if err != nil {
		return "", err
	}
	revision, ok := v.Of(shard)
	if !ok {
		return "", ErrOtherShards
	}
	return strconv.FormatUint(revision, 10), nil
}

// ErrOtherShards says that a merged version tells nothing about the shard that was asked.
var ErrOtherShards = errors.New("the version is one of other shards")
