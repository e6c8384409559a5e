package push

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/replication/digest"
)

const (
	// verifyPause is the least time between two comparisons.
	verifyPause = 50 * time.Millisecond
)

var errNewData = errors.New("the cache server's data was lost and made anew")

// verifier compares digests of the replicas with those that the cache server has.
type verifier struct {
	config   Config
	sessions func() map[string]*session
	// kicked gets something when digests are to be compared soon.
	kicked chan struct{}
	// dataID names the data that the cache server had.
	dataID string
	// breaks counts what may have replaced the data of the cache server, and checked how many of
	// those were looked into.
	breaks, checked atomic.Int64
}

func newVerifier(config Config, sessions func() map[string]*session) *verifier {
	return &verifier{config: config, sessions: sessions, kicked: make(chan struct{}, 1)}
}

// soon has digests compared soon.
func (v *verifier) soon() {
	select {
	case v.kicked <- struct{}{}:
	default:
	}
}

// broken says that the cache server may have been replaced by another one, or by itself with other
// data. Until that was looked into, doubtful is true.
func (v *verifier) broken() {
	v.breaks.Add(1)
	v.soon()
}

func (v *verifier) doubtful() bool { return v.breaks.Load() != v.checked.Load() }

// run compares until ctx is done.
func (v *verifier) run(ctx context.Context) {
	ticker := time.NewTicker(jitter(v.config.DigestInterval))
	defer ticker.Stop()
	kicked := v.kicked
	var rest <-chan time.Time
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-kicked:
		case <-rest:
			rest, kicked = nil, v.kicked
			continue
		}
		err := v.verify(ctx)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The digests of replicas could not be compared", "err", err)
			v.soon()
		}
		// Sessions that start together ask together; a server that does not answer is left alone, but not for so long
		// that somebody waits for it who finds it back.
		pause := verifyPause
		switch {
		case err != nil:
			if pause = v.config.AlertInterval; failing {
				pause *= 2
			}
			failing = true
		case failing:
			v.again()
			failing = false
		}
		kicked, rest = nil, time.After(min(pause, v.config.DigestInterval))
	}
}

// again has tried what waits for its next try: the cache server answers again.
func (v *verifier) again() {
	for _, s := range v.sessions() {
		s.again()
	}
}

// verify compares once, and has what is different repaired.
func (v *verifier) verify(ctx context.Context) error {
	sessions, before := v.sessions(), map[*session]*moment{}
	breaks, waiting := v.breaks.Load(), map[*session]bool{}
	for _, s := range sessions {
		waiting[s] = s.waits()
		if s.started.Load() {
			before[s] = s.now()
		}
	}
	answer, err := v.ask(ctx, "")
	if err != nil {
		return err
	}
	if v.dataID != "" && v.dataID != answer.DataID {
		for _, s := range sessions {
			if s.asked.Load() {
				s.end(fmt.Errorf("%w: %w", errOtherData, errNewData))
			}
		}
		before = nil
	}
	v.dataID = answer.DataID
	var errs []error
	for resource, s := range sessions {
		if waiting[s] {
			s.asked.Store(true)
			s.roots <- answer
		}
		expected := before[s]
		if expected != nil && expected.root != rootOf(answer, resource) {
			errs = append(errs, s.verify(ctx))
		}
	}
	err = errors.Join(errs...)
	if err == nil {
		v.checked.Store(breaks)
	}
	return err
}

// rootOf returns what an answer says of a resource.
func rootOf(answer *digest.Answer, resource string) digest.Root {
	root, ok := answer.Resources[resource]
	if !ok {
		root.Digest = new(digest.Sums).Digest()
	}
	return root
}

// ask asks for the digests of all resources, of one, or of a bucket of that.
func (v *verifier) ask(ctx context.Context, resource string, bucket ...int) (*digest.Answer, error) {
	return digest.Ask(ctx, v.config.replicas(), resource, bucket...)
}

// verify looks for what is different in a resource, in the buckets of which nothing has changed
// meanwhile, and has it repaired.
func (s *session) verify(ctx context.Context) error {
	before := s.now()
	answer, err := s.verifier.ask(ctx, s.name())
	if err != nil {
		return err
	}
	after, theirs := s.now(), answer.Sums()
	var suspects []client.Key
	for bucket := range digest.Buckets {
		if theirs[bucket] == before.sums[bucket] || !before.still(after, bucket) {
			continue
		}
		some, err := s.suspectsIn(ctx, bucket)
		if err != nil {
			return err
		}
		suspects = append(suspects, some...)
	}
	for _, key := range suspects {
		s.doubt(key)
	}
	return nil
}

// suspectsIn returns the keys of a bucket that are different; none if it has changed meanwhile.
func (s *session) suspectsIn(ctx context.Context, bucket int) ([]client.Key, error) {
	before := s.now()
	answer, err := s.verifier.ask(ctx, s.name(), bucket)
	if err != nil || !before.still(s.now(), bucket) {
		return nil, err
	}
	return s.differing(bucket, answer.Keys)
}

// differing returns the keys of a bucket of which the cache server has others than are expected.
func (s *session) differing(bucket int, theirs map[string]digest.Number) ([]client.Key, error) {
	different := s.expected.Keys(bucket)
	for text, hash := range theirs {
		if mine, ok := different[text]; ok && mine == hash {
			delete(different, text)
		} else {
			different[text] = hash
		}
	}
	keys := make([]client.Key, 0, len(different))
	for text := range different {
		key, err := client.SplitKey(text)
		if err != nil || key.Shard != "" {
			return nil, fmt.Errorf("the cache server has a replica under the key %.100q, which is none", text)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// jitter spreads the requests of many shards.
func jitter(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4) }
