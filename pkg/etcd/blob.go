package etcd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// partSize is the size of a part. By default, requests to etcd are limited to 1.5 MiB.
	partSize = 1 << 20
	// maxParts is limited by the number of comparisons in a transaction, which is 128 by default.
	maxParts = 120
)

// errBlobChanged is returned if another replica has replaced the blob concurrently.
var errBlobChanged = errors.New("another server has replaced it concurrently")

// Blob is a value of up to 120 MiB in etcd, which replicas share. It is stored in several keys below the server's
// prefix. The keys have fewer segments than those of objects.
//
//	<prefix>/<name>/current          <sum>.<number of parts>
//	<prefix>/<name>/part-<sum>.<n>   the parts
type Blob struct {
	client *clientv3.Client
	prefix string
}

// Blob returns the blob with a name, which must not contain slashes.
func (h *Handle) Blob(name string) *Blob {
	return &Blob{client: h.client.Client, prefix: path.Join(h.prefix, name) + "/"}
}

// String returns the location of the blob.
func (b *Blob) String() string { return "etcd:" + b.prefix }

func (b *Blob) current() string { return b.prefix + "current" }

func (b *Blob) part(sum string, n int) string { return b.parts(sum) + "." + strconv.Itoa(n) }

func (b *Blob) parts(sum string) string { return b.prefix + "part-" + sum }

// Load returns the value, or an error that is fs.ErrNotExist.
func (b *Blob) Load(ctx context.Context) ([]byte, error) {
	current, err := b.client.Get(ctx, b.current())
	if err != nil {
		return nil, err
	}
	if len(current.Kvs) == 0 {
		return nil, fs.ErrNotExist
	}
	sum, count, _ := strings.Cut(string(current.Kvs[0].Value), ".")
	parts, err := strconv.Atoi(count)
	if err != nil || parts > maxParts {
		return nil, fmt.Errorf("the value of %s has an unknown format", b.current())
	}
	var value []byte
	for n := range parts {
		// Read at one revision, because the parts may be replaced concurrently.
		found, err := b.client.Get(ctx, b.part(sum, n), clientv3.WithRev(current.Header.Revision))
		if err != nil {
			return nil, err
		}
		if len(found.Kvs) == 0 {
			return nil, fmt.Errorf("the key %s does not exist", b.part(sum, n))
		}
		value = append(value, found.Kvs[0].Value...)
	}
	return value, nil
}

// Replace stores another value, in the transaction that deletes the previous one.
func (b *Blob) Replace(ctx context.Context, value []byte) error {
	if len(value) > maxParts*partSize {
		return fmt.Errorf("%d bytes, at most %d allowed", len(value), maxParts*partSize)
	}
	digest := sha256.Sum256(value)
	sum := hex.EncodeToString(digest[:])
	var there []clientv3.Cmp
	for part := range slices.Chunk(value, partSize) {
		key := b.part(sum, len(there))
		if _, err := b.client.Put(ctx, key, string(part)); err != nil {
			return err
		}
		// A concurrent replacement deletes these parts.
		there = append(there, clientv3.Compare(clientv3.CreateRevision(key), ">", 0))
	}
	done, err := b.client.Txn(ctx).If(there...).Then(
		clientv3.OpDelete(b.parts(""), clientv3.WithRange(b.parts(sum)+".")), // the parts before and after those of sum
		clientv3.OpDelete(b.parts(sum)+"/", clientv3.WithRange(clientv3.GetPrefixRangeEnd(b.parts("")))),
		clientv3.OpPut(b.current(), sum+"."+strconv.Itoa(len(there))),
	).Commit()
	if err == nil && !done.Succeeded {
		return errBlobChanged
	}
	return err
}
