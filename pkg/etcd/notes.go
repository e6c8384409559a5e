package etcd

import (
	"context"
	"path"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// notesTimeout limits one request.
const notesTimeout = 10 * time.Second

// Notes are small values in etcd, which can be modified in transactions with conditions on objects. Keys of objects
// are without the server's prefix.
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

// Read returns all notes.
func (n *Notes) Read(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	resp, err := n.client.Get(ctx, n.below, clientv3.WithPrefix())
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

// There reports whether an object with the key exists.
func (n *Notes) There(ctx context.Context, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	resp, err := n.client.Get(ctx, n.prefix+key, clientv3.WithCountOnly())
	return err == nil && resp.Count > 0, err
}

// Names returns the parts of objects' keys after the prefix below.
func (n *Notes) Names(ctx context.Context, below string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, notesTimeout)
	defer cancel()
	resp, err := n.client.Get(ctx, n.prefix+below, clientv3.WithPrefix(), clientv3.WithKeysOnly())
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
