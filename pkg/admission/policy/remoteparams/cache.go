// Package remoteparams reads the parameters of policies that are on other shards, or are too large to be
// cached by an informer, and caches them briefly.
//
//	policy of a provider elsewhere ─► Kind ─► Cache ──► one read at a time of each parameter,
//	                                            │       from the shard of the policy
//	                                            └────► replica snapshot, for a start in an outage
//
// A response is read again at most once a second. A write waits for this only if the last read is more than five
// seconds old. If a read fails, the cached response remains in use, as policies do. Authors of policies choose the
// parameters, so the size of a read, the number of concurrent reads, and the cached bytes per provider are limited.
package remoteparams

import (
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

const (
	// freshFor is the time before a response is read again, and maxAge the time before a request waits for that.
	//
	//reference:none
	freshFor, maxAge = time.Second, 5 * time.Second
	// readTimeout limits a read, and retryAfter is the delay after a failed read from a provider.
	readTimeout, retryAfter = 2 * time.Second, time.Second
	// maxReads is the number of concurrent reads from one provider.
	//
	//reference:limit provider | admission policies: concurrent reads of parameters, for consumers on other shards | they wait
	maxReads = 4
	// maxProviderBytes limits the cached bytes of one provider, and maxBytes of all. The least recently used responses
	// are evicted.
	//
	//reference:none
	maxProviderBytes, maxBytes = 8 << 20, 64 << 20
	// unusedFor is the time after which an unused response is dropped.
	unusedFor = 24 * time.Hour
)

// ErrUnread is returned if there is no response, neither current nor cached. Only the log of the shard contains the
// reason, because users must not see addresses of shards.
var ErrUnread = errors.New("the parameters cannot be read: their shard does not respond, and they are not cached: try again later")

var (
	errRefused = errors.New("the parameters cannot be read: their shard rejects the request")
	errNoValue = errors.New("saved parameters of policies have no value")
)

// Cache caches responses. It is safe for concurrent use.
type Cache struct {
	logger klog.Logger
	read   Read

	mu        sync.Mutex
	entries   map[key]*entry
	providers map[Location]*provider
	// recent contains all entries, the most recently used first.
	recent  *list.List
	bytes   int
	changes uint64
	stopped bool
	reads   sync.WaitGroup
}

// NewParamCache returns an empty Cache.
func NewParamCache(ctx context.Context, read Read) *Cache {
	return &Cache{
		logger: klog.FromContext(ctx), read: read,
		entries: map[key]*entry{}, providers: map[Location]*provider{}, recent: list.New(),
	}
}

// key identifies a request: a path with an optional selector, for policies that name the kind.
type key struct {
	Location

	Kind     schema.GroupVersionKind `json:"kind"`
	Path     string                  `json:"path"`
	Selector string                  `json:"selector,omitempty"`
	List     bool                    `json:"list,omitempty"`
}

func (k *key) query() url.Values {
	query := url.Values{}
	if k.List {
		query.Set("limit", strconv.Itoa(MaxObjects))
	}
	if k.Selector != "" {
		query.Set("labelSelector", k.Selector)
	}
	return query
}

// entry is the response to a request. The lock of the cache guards it.
type entry struct {
	key

	provider        *provider
	response        *response
	weight          int
	requested, used time.Time
	reading         chan struct{}
	inAll, inOwn    *list.Element
}

type provider struct {
	reads *semaphore.Weighted
	// recent contains the entries of the provider, the most recently used first.
	recent *list.List
	bytes  int
	// retry is the time of the next attempt after a failed read, and otherwise zero.
	retry time.Time
}

// Stop rejects new reads and waits for running ones.
func (c *Cache) Stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.reads.Wait()
}

// get returns the response to a request, which parse decodes.
func (c *Cache) get(k key, parse func([]byte) (*response, error)) (*response, error) {
	c.mu.Lock()
	e := c.use(k)
	last, age := e.response, time.Since(e.requested)
	// Requests do not wait again for a shard that did not respond.
	wait := last == nil || age >= maxAge && e.provider.retry.IsZero()
	var reading chan struct{}
	if last == nil || age >= freshFor {
		reading = c.start(e, parse)
	}
	c.mu.Unlock()
	if reading != nil && wait {
		<-reading // readTimeout limits the time
		c.mu.Lock()
		last = e.response
		c.mu.Unlock()
	}
	if last == nil {
		return nil, ErrUnread
	}
	return last, last.refused
}

// use returns the entry of a request and moves it to the front. The lock must be held, also for the following methods.
func (c *Cache) use(k key) *entry {
	e := c.entries[k]
	if e == nil {
		p := c.providers[k.Location]
		if p == nil {
			p = &provider{reads: semaphore.NewWeighted(maxReads), recent: list.New()}
			c.providers[k.Location] = p
		}
		e = &entry{key: k, provider: p}
		c.entries[k] = e
		e.inAll, e.inOwn = c.recent.PushFront(e), p.recent.PushFront(e)
		c.weigh(e)
	}
	e.used = time.Now()
	c.recent.MoveToFront(e.inAll)
	e.provider.recent.MoveToFront(e.inOwn)
	return e
}

// weigh updates the memory of an entry, and evicts others.
func (c *Cache) weigh(e *entry) {
	weight := e.response.weight() + len(e.Path) + len(e.Selector) + 512 // overhead of the entry
	e.provider.bytes += weight - e.weight
	c.bytes += weight - e.weight
	e.weight = weight
	for e.provider.bytes > maxProviderBytes && e.provider.recent.Back() != e.inOwn {
		c.remove(entryOf(e.provider.recent.Back()))
	}
	for c.bytes > maxBytes && c.recent.Back() != e.inAll {
		c.remove(entryOf(c.recent.Back()))
	}
}

func entryOf(element *list.Element) *entry {
	e, _ := element.Value.(*entry)
	return e
}

func (c *Cache) remove(e *entry) {
	if c.entries[e.key] != e {
		return
	}
	delete(c.entries, e.key)
	c.recent.Remove(e.inAll)
	e.provider.recent.Remove(e.inOwn)
	e.provider.bytes -= e.weight
	c.bytes -= e.weight
	if e.provider.recent.Len() == 0 && c.providers[e.Location] == e.provider {
		delete(c.providers, e.Location)
	}
}

// start starts a read unless one is running, and returns a channel that is closed when the read ends. It
// returns nil if no read is permitted now.
func (c *Cache) start(e *entry, parse func([]byte) (*response, error)) chan struct{} {
	if e.reading != nil {
		return e.reading
	}
	if c.stopped || time.Now().Before(e.provider.retry) {
		return nil
	}
	done := make(chan struct{})
	e.reading = done
	c.reads.Go(func() {
		found, err := c.fetch(e, parse)
		c.mu.Lock()
		defer c.mu.Unlock()
		e.reading = nil
		close(done)
		c.store(e, found, err)
	})
	return done
}

// fetch sends the request. A rejection is a response too.
func (c *Cache) fetch(e *entry, parse func([]byte) (*response, error)) (*response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout) //nolint:forbidigo // upstream's listers have no context, and the read is shared
	defer cancel()
	if err := e.provider.reads.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("%d parameters of the logical cluster are being read: %w", maxReads, err)
	}
	defer e.provider.reads.Release(1)
	content, err := c.read(ctx, e.Location, e.Path, e.query())
	var found *response
	if err == nil {
		found, err = parse(content)
	}
	var status apierrors.APIStatus
	switch isStatus := errors.As(err, &status); {
	case err == nil && found.weight() > maxProviderBytes:
		return &response{refused: errTooLarge}, nil
	case err == nil:
		return found, nil
	case apierrors.IsNotFound(err):
		return &response{Missing: true}, nil
	case errors.Is(err, errTooLarge) || errors.Is(err, ErrTooMany):
		return &response{refused: err}, nil
	case isStatus && status.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err):
		c.logger.V(2).Info("Shard rejected a read of policy parameters", "shard", e.Shard, "logicalCluster", e.Cluster, "path", e.Path, "reason", err)
		return &response{refused: errRefused}, nil
	default:
		return nil, err
	}
}

// store stores the result of a read. After an error, the previous response remains.
func (c *Cache) store(e *entry, found *response, err error) {
	if err != nil {
		c.logger.V(2).Info("Failed to read policy parameters", "shard", e.Shard, "logicalCluster", e.Cluster, "path", e.Path, "reason", err)
		e.provider.retry = time.Now().Add(retryAfter)
		if e.response == nil {
			c.remove(e)
		}
		return
	}
	e.requested, e.provider.retry = time.Now(), time.Time{}
	if !reflect.DeepEqual(e.response, found) {
		c.changes++
	}
	e.response = found
	if c.entries[e.key] == e {
		c.weigh(e)
	}
}

func (c *Cache) forget(at Location, kind schema.GroupVersionKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.providers[at]
	if p == nil {
		return
	}
	for element := p.recent.Front(); element != nil; {
		e := entryOf(element)
		element = element.Next()
		if e.Kind == kind {
			c.remove(e)
			c.changes++
		}
	}
}

type saved struct {
	key

	Used     time.Time `json:"used"`
	Response *response `json:"response"`
}

// Name is the name of the responses in a snapshot.
func (c *Cache) Name() string { return "parameters of policies" }

// Resource determines the encryption of the responses: like Secrets, because some parameters may be Secrets.
func (c *Cache) Resource() schema.GroupResource { return corev1.Resource("secrets") }

// Changes counts the changes of cached responses.
func (c *Cache) Changes() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// Save returns the cached responses, the most recently used last, and drops those that were not used for unusedFor.
func (c *Cache) Save() ([]json.RawMessage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []json.RawMessage{}
	for element := c.recent.Back(); element != nil; {
		e := entryOf(element)
		element = element.Prev()
		if time.Since(e.used) > unusedFor {
			c.remove(e)
			continue
		}
		if e.response == nil || e.response.refused != nil {
			continue
		}
		text, err := json.Marshal(saved{e.key, e.used, e.response})
		if err != nil {
			return nil, fmt.Errorf("encoding the parameters at %s: %w", e.Path, err)
		}
		all = append(all, text)
	}
	return all, nil
}

// Restore loads the result of Save. Restored responses are used until they have been read again.
func (c *Cache) Restore(all []json.RawMessage) error {
	restored := make([]saved, len(all))
	for i, text := range all {
		if err := json.Unmarshal(text, &restored[i]); err != nil {
			return fmt.Errorf("decoding parameters of policies: %w", err)
		}
		if restored[i].Response == nil {
			return errNoValue
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range restored {
		e := c.use(s.key)
		e.used, e.response = s.Used, s.Response
		c.weigh(e)
	}
	return nil
}
