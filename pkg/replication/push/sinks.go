package push

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
)

// localSink receives the objects of the shard.
type localSink struct {
	*session

	// seen is not nil during a resync.
	seen map[client.Key]struct{}
}

func (l *localSink) Begin() {
	l.seen = map[client.Key]struct{}{}
	if l.regional != nil {
		for _, text := range l.regional.WithPrefix("") {
			l.regional.Remove(text)
		}
	}
}

func (l *localSink) Put(obj *unstructured.Unstructured) {
	key := client.KeyOf(obj)
	if !l.resource.Selects(obj) {
		l.absent(key)
		l.keepRegional(key, obj)
		return
	}
	if l.seen != nil {
		l.seen[key] = struct{}{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	text := key.String()
	if l.regional != nil {
		l.regional.Remove(text)
	}
	hash, err := replication.HashReplica(text, l.resource.Desired(obj).Object)
	known, _, has := l.expected.Get(text)
	switch {
	case !l.comparing:
		l.expected.Set(text, hash, 0)
	case err != nil || !has || known != hash:
		l.recordChange(key, l.seen != nil)
	}
}

func (l *localSink) Delete(last *unstructured.Unstructured) { l.absent(client.KeyOf(last)) }

// keepRegional handles an object that is not relayed.
func (l *localSink) keepRegional(key client.Key, obj *unstructured.Unstructured) {
	if l.regional == nil {
		return
	}
	text := key.String()
	if hash, err := replication.HashReplica(text, l.resource.Desired(obj).Object); err == nil {
		l.regional.Set(text, hash, struct{}{})
	}
}

// absent handles an object that must have no replica.
func (l *localSink) absent(key client.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := key.String()
	if l.regional != nil {
		l.regional.Remove(text)
	}
	_, _, has := l.expected.Get(text)
	switch {
	case !l.comparing:
		l.expected.Remove(text)
	case has || l.ledger.has(key):
		l.recordChange(key, l.seen != nil)
	}
}

func (l *localSink) End() {
	missing := l.ledger.pending()
	for _, text := range l.expected.WithPrefix("") {
		if key, err := client.SplitKey(text); err == nil {
			missing = append(missing, key)
		}
	}
	for _, key := range missing {
		if _, observed := l.seen[key]; !observed {
			l.absent(key)
		}
	}
	l.seen = nil
}
