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
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// notesTimeout limits one request.
const notesTimeout = 10 * time.Second

// Notes are small values in etcd, which can be modified in transactions with conditions on objects. Keys of objects
// lack the server's prefix.
//
//	<prefix>/<name of the notes>/<name>
type Notes struct {
	client        *clientv3.Client
	prefix, below string
}

// Notes returns the notes with a name, which must not contain slashes.
func (h *Handle) Notes(name string) *Notes {
	return &Notes{client: h.client.Client, prefix: h.prefix, below: path.Join(h.prefix, name) + "/"}
}

func (n *Notes) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	return n.client.Get(ctx, key, options...)
}

// Read returns all notes.
func (n *Notes) Read(ctx context.Context) (map[string]string, error) {
	resp, err := n.get(ctx, n.below, clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	all := make(map[string]string, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		all[strings.TrimPrefix(string(kv.Key), n.below)] = string(kv.Value)
	}
	return all, nil
}

// Set sets a note.
func (n *Notes) Set(ctx context.Context, name, value string) error {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	_, err := n.client.Put(ctx, n.below+name, value)
	return err
}

// Delete deletes a note if it has the value and an object with the key exists.
func (n *Notes) Delete(ctx context.Context, name, value, key string) error {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	_, err := n.client.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(n.prefix+key), ">", 0),
		clientv3.Compare(clientv3.Value(n.below+name), "=", value),
	).Then(clientv3.OpDelete(n.below + name)).Commit()
	return err
}

// Exists reports whether an object with the key exists.
func (n *Notes) Exists(ctx context.Context, key string) (bool, error) {
	resp, err := n.get(ctx, n.prefix+key, clientv3.WithCountOnly())
	return err == nil && resp.Count > 0, err
}

// Names returns the parts of objects' keys after the prefix below.
func (n *Notes) Names(ctx context.Context, below string) ([]string, error) {
	resp, err := n.get(ctx, n.prefix+below, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, err
	}
	names := make([]string, len(resp.Kvs))
	for i, kv := range resp.Kvs {
		names[i] = strings.TrimPrefix(string(kv.Key), n.prefix+below)
	}
	return names, nil
}

// DeletePage deletes the first objects with the key prefix below, at most limit, and returns their number. If key is
// not empty, it deletes nothing if an object with that key exists.
func (n *Notes) DeletePage(ctx context.Context, below string, limit int64, key string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	page, err := n.client.Get(ctx, n.prefix+below, clientv3.WithPrefix(), clientv3.WithKeysOnly(), clientv3.WithLimit(limit))
	if err != nil || len(page.Kvs) == 0 {
		return 0, err
	}
	after := string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	var unless []clientv3.Cmp
	if key != "" {
		unless = append(unless, clientv3.Compare(clientv3.CreateRevision(n.prefix+key), "=", 0))
	}
	resp, err := n.client.Txn(ctx).If(unless...).Then(clientv3.OpDelete(n.prefix+below, clientv3.WithRange(after))).Commit()
	if err != nil || !resp.Succeeded {
		return 0, err
	}
	return int(resp.Responses[0].GetResponseDeleteRange().GetDeleted()), nil
}

const (
	// partSize is the size of a part. By default, requests to etcd are limited to 1.5 MiB.
	partSize = 1 << 20
	// maxParts is limited by the number of comparisons in a transaction, which is 128 by default.
	maxParts = 120
)

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
