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
	// versionPrefix is the prefix of merged versions. Resource versions of shards do not have it.
	versionPrefix = "m1."
	// MaxShards is the maximum number of merged shards, because versions of more shards would be too long.
	MaxShards = 128
	// numberBytes is the size of a shard's number, and of a version's checksum.
	numberBytes = 4
)

// ErrVersion is returned for an invalid merged version.
var ErrVersion = errors.New("not a valid merged resource version: it was changed or truncated")

var versionEncoding = base64.RawURLEncoding.Strict()

// Position is a resource version of one shard.
type Position struct {
	// Shard is the number of the shard.
	Shard    uint32
	Revision uint64
}

// Vector contains one resource version per shard; shards without a position have not been read. Positions are
// ordered by the shards' numbers. A Vector is immutable.
type Vector struct{ positions []Position }

// NumberOf returns the number of a shard in versions, which depends on the UID of its Shard object. A shard that is
// registered again has another number.
func NumberOf(uid string) uint32 {
	sum := sha256.Sum256([]byte(uid))
	return binary.BigEndian.Uint32(sum[:numberBytes])
}

// IsVersion reports whether a text has the prefix of merged versions.
func IsVersion(text string) bool { return strings.HasPrefix(text, versionPrefix) }

// MayContainVersion reports whether a body may contain a merged version.
func MayContainVersion(body []byte) bool { return bytes.Contains(body, []byte(versionPrefix)) }

// ParseVersion parses a merged version. It returns ErrVersion if it is invalid.
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

// String returns the version in the format of ParseVersion.
func (v Vector) String() string {
	raw := make([]byte, 0, len(v.positions)*(numberBytes+binary.MaxVarintLen64)+numberBytes)
	for _, p := range v.positions {
		raw = binary.BigEndian.AppendUint32(raw, p.Shard)
		raw = binary.AppendUvarint(raw, p.Revision)
	}
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return versionPrefix + versionEncoding.EncodeToString(raw)
}

// Of returns the revision of a shard, and false if the vector has none.
func (v Vector) Of(shard uint32) (uint64, bool) {
	at, found := v.find(shard)
	if !found {
		return 0, false
	}
	return v.positions[at].Revision, true
}

// With returns a copy with the revision of one shard.
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

// Positions returns the positions of all shards in the vector.
func (v Vector) Positions() []Position { return slices.Clone(v.positions) }

func (v Vector) find(shard uint32) (at int, found bool) {
	return slices.BinarySearchFunc(v.positions, shard, func(p Position, shard uint32) int { return cmp.Compare(p.Shard, shard) })
}

// OwnVersion returns the part of a resource version for the shard with a number. It returns versions that are not
// merged unchanged. It returns ErrVersion for an invalid version, and ErrOtherShards if it has no part for the shard.
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

// ErrOtherShards is returned if a merged version has no part for the shard.
var ErrOtherShards = errors.New("the resource version belongs to other shards")
