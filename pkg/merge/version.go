package merge

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"maps"
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

// Vector contains one resource version per shard, by the shard's number; shards without a version have not been read.
// A Vector must not be changed after it was passed on.
type Vector map[uint32]uint64

// NumberOf returns the number of a shard in versions, which changes if it is registered again, with another UID.
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
		return nil, ErrVersion
	}
	raw, err := versionEncoding.DecodeString(encoded)
	if err != nil || len(raw) < numberBytes {
		return nil, ErrVersion
	}
	raw, sum := raw[:len(raw)-numberBytes], raw[len(raw)-numberBytes:]
	if crc32.ChecksumIEEE(raw) != binary.BigEndian.Uint32(sum) {
		return nil, ErrVersion
	}
	v := Vector{}
	for len(raw) > numberBytes {
		revision, read := binary.Uvarint(raw[numberBytes:])
		if read <= 0 || revision == 0 {
			return nil, ErrVersion
		}
		v[binary.BigEndian.Uint32(raw)] = revision
		raw = raw[numberBytes+read:]
	}
	if len(raw) > 0 || v.String() != text { // e.g. a shard twice, or another order
		return nil, ErrVersion
	}
	return v, nil
}

// String returns the version in the format of ParseVersion, ordered by the shards' numbers.
func (v Vector) String() string {
	raw := make([]byte, 0, len(v)*(numberBytes+binary.MaxVarintLen64)+numberBytes)
	for _, shard := range slices.Sorted(maps.Keys(v)) {
		raw = binary.BigEndian.AppendUint32(raw, shard)
		raw = binary.AppendUvarint(raw, v[shard])
	}
	raw = binary.BigEndian.AppendUint32(raw, crc32.ChecksumIEEE(raw))
	return versionPrefix + versionEncoding.EncodeToString(raw)
}

// With returns a copy with the revision of one shard.
func (v Vector) With(shard uint32, revision uint64) Vector {
	with := make(Vector, len(v)+1)
	maps.Copy(with, v)
	with[shard] = revision
	return with
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
	revision, ok := v[shard]
	if !ok {
		return "", ErrOtherShards
	}
	return strconv.FormatUint(revision, 10), nil
}

// ErrOtherShards is returned if a merged version has no part for the shard.
var ErrOtherShards = errors.New("the resource version belongs to other shards")
