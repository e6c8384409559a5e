package push

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication"
)

// localSink is told what the shard has.
type localSink struct {
	*session

	// seen is not nil while the shard tells all that it has.
	seen map[client.Key]struct{}
}

// Begin implements client.Sink.
func (l *localSink) Begin() {
	l.seen = map[client.Key]struct{}{}
	if l.regional != nil {
		for _, text := range l.regional.WithPrefix("") {
			l.regional.Remove(text)
		}
	}
}

// Put implements client.Sink.
func (l *localSink) Put(obj *unstructured.Unstructured) {
	key := client.KeyOf(obj)
	if !l.resource.Selects(obj) {
		l.gone(key)
		l.stays(key, obj)
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
		l.tell(key, l.seen != nil)
	}
}

// Delete implements client.Sink.
func (l *localSink) Delete(last *unstructured.Unstructured) { l.gone(client.KeyOf(last)) }

// stays is told of an object that is not relayed.
func (l *localSink) stays(key client.Key, obj *unstructured.Unstructured) {
	if l.regional == nil {
		return
	}
	text := key.String()
	if hash, err := replication.HashReplica(text, l.resource.Desired(obj).Object); err == nil {
		l.regional.Set(text, hash, struct{}{})
	}
}

// gone is told of an object that has no replica, or none any more.
func (l *localSink) gone(key client.Key) {
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
		l.tell(key, l.seen != nil)
	}
}

// End implements client.Sink.
func (l *localSink) End() {
	missing := l.ledger.pending()
	for _, text := range l.expected.WithPrefix("") {
		if key, err := client.SplitKey(text); err == nil {
			missing = append(missing, key)
		}
	}
	for _, key := range missing {
		if _, told := l.seen[key]; !told {
			l.gone(key)
		}
	}
	l.seen = nil
}
