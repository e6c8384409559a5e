package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/client"
	"github.com/shardplane/shardplane/pkg/controllers/replication/digest"
)

const (
	// digestTimeout bounds a request for digests, and maxAnswer its answer.
	digestTimeout = 15 * time.Second
	maxAnswer     = 64 << 20
	// fruitless is how often differences may turn out to be none before nobody looks any more.
	fruitless = 3
)

var (
	// errNoDigests says that the cache server has no digests that can be compared.
	errNoDigests = errors.New("the cache server has no digests that this release knows")
	errNewData   = errors.New("the cache server's data was lost and made anew")
)

// verifier compares digests of the replicas with those that the cache server has.
type verifier struct {
	config   Config
	sessions func() map[string]*session
	// dataID names the data that the cache server had.
	dataID string
	// serves is set while the cache server has digests.
	serves atomic.Bool
}

// run compares until ctx is done.
func (v *verifier) run(ctx context.Context) {
	ticker := time.NewTicker(jitter(v.config.DigestInterval))
	defer ticker.Stop()
	for {
		if err := v.verify(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("The digests of replicas could not be compared", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// verify compares once, and repairs what is different.
func (v *verifier) verify(ctx context.Context) error {
	sessions, before := v.sessions(), map[*session]*moment{}
	for _, s := range sessions {
		if s.started.Load() {
			before[s] = s.now()
		}
	}
	answer, err := v.ask(ctx, "")
	v.serves.Store(err == nil)
	if err != nil {
		return err
	}
	if v.dataID != "" && v.dataID != answer.DataID {
		for _, s := range sessions {
			s.end(fmt.Errorf("%w: %w", errOtherData, errNewData))
		}
		before = nil
	}
	v.dataID = answer.DataID
	var errs []error
	for resource, s := range sessions {
		s.resource.server.keeps()
		expected := before[s]
		root, ok := answer.Resources[resource]
		if !ok {
			root = digest.NewTable().Root()
		}
		if expected != nil && expected.root != root && s.fruitless < fruitless {
			errs = append(errs, s.verify(ctx, v, resource))
		}
	}
	return errors.Join(errs...)
}

// ask asks for the digests of all resources, of one, or of a bucket of that.
func (v *verifier) ask(ctx context.Context, resource string, bucket ...int) (*digest.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, digestTimeout)
	defer cancel()
	replicas := v.config.replicas()
	url := replicas.Host() + digest.Path
	if resource != "" {
		url += "/" + resource
	}
	if len(bucket) > 0 {
		url += "/" + strconv.Itoa(bucket[0])
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for digests: %w", err)
	}
	response, err := replicas.HTTPClient().Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking for digests: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading digests: %w", err)
	}
	return parseAnswer(response.StatusCode, body, resource != "" && len(bucket) == 0)
}

// parseAnswer returns what the cache server has answered. ofResource says that it was asked for the
// buckets of one resource. Servers of a previous release answer 400, and kcp's 404.
func parseAnswer(status int, body []byte, ofResource bool) (*digest.Answer, error) {
	switch status {
	case http.StatusOK:
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, errNoDigests
	default:
		return nil, fmt.Errorf("asking for digests is answered with %d: %.200s", status, body)
	}
	answer := &digest.Answer{}
	if err := json.Unmarshal(body, answer); err != nil {
		return nil, fmt.Errorf("reading digests: %w", err)
	}
	if answer.Form != digest.Form {
		return nil, errNoDigests
	}
	if err := answer.Check(ofResource); err != nil {
		return nil, err
	}
	return answer, nil
}

// verify looks for what is different in a resource, in the buckets of which nothing has changed
// meanwhile, and repairs it.
func (s *session) verify(ctx context.Context, v *verifier, resource string) error {
	before := s.now()
	answer, err := v.ask(ctx, resource)
	if err != nil {
		return err
	}
	after, theirs := s.now(), answer.Sums()
	var suspects []client.Key
	for bucket := range digest.Buckets {
		if theirs[bucket] == before.sums[bucket] || !before.still(after, bucket) {
			continue
		}
		some, err := s.suspectsIn(ctx, v, resource, bucket)
		if err != nil {
			return err
		}
		suspects = append(suspects, some...)
	}
	if len(suspects) > 0 {
		return s.repairAll(ctx, suspects)
	}
	return nil
}

// suspectsIn returns the keys of a bucket that are different; none if it has changed meanwhile.
func (s *session) suspectsIn(ctx context.Context, v *verifier, resource string, bucket int) ([]client.Key, error) {
	before := s.now()
	answer, err := v.ask(ctx, resource, bucket)
	if err != nil || !before.still(s.now(), bucket) {
		return nil, err
	}
	different, theirs := s.expected.Keys(bucket), answer.Keys
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

// repairAll repairs some replicas, several at a time. If none of them needs it, the two sides do not
// compare the same.
func (s *session) repairAll(ctx context.Context, keys []client.Key) error {
	var (
		wg       sync.WaitGroup
		repaired atomic.Int64
		mu       sync.Mutex
		errs     []error
		work     = make(chan client.Key)
	)
	for range min(s.config.Workers, len(keys)) {
		wg.Go(func() {
			for key := range work {
				problem, err := s.repair(ctx, key)
				if problem != "" {
					repaired.Add(1)
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	for _, key := range keys {
		work <- key
	}
	close(work)
	wg.Wait()
	switch {
	case repaired.Load() > 0:
		s.fruitless = 0
	case len(errs) == 0:
		if s.fruitless++; s.fruitless == fruitless {
			klog.FromContext(ctx).Info("Digests show differences that are none, and are not compared any more: audits go on", "resource", s.resource.GroupResource().String(), "keys", len(keys))
		}
	}
	return errors.Join(errs...)
}

// repair puts a replica right, if it is wrong, by what both servers have now, past the informers.
func (s *session) repair(ctx context.Context, key client.Key) (Problem, error) {
	defer s.expected.begin(key)()
	local, err := getObject(ctx, s.config.Local, s.resource, key)
	if err != nil {
		return "", err
	}
	replica, err := getObject(ctx, s.config.replicas(), s.resource, key)
	if err != nil {
		return "", err
	}
	problem := problemOf(s.resource, local, replica)
	if problem != "" {
		todo, obj := decide(s.resource, local, replica)
		if err := s.bring(ctx, key, todo, obj); err != nil {
			return problem, err
		}
		resource := s.resource.GroupResource().String()
		repairs.WithLabelValues(resource, string(problem)).Inc()
		klog.FromContext(ctx).Info("A replica was wrong, as digests show, and was put right", "resource", resource, "key", key.String(), "problem", problem)
	}
	s.expect(ctx, key, local)
	return problem, nil
}
