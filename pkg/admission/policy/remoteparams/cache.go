package remoteparams

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/kcp-dev/logicalcluster/v3"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

const (
	// freshFor is for how long an answer is not asked for again, and maxAge for how long
	// nobody waits for another one.
	freshFor, maxAge = time.Second, 5 * time.Second
	// readTimeout bounds a read, and retryAfter is when a provider is asked again that
	// could not be.
	readTimeout, retryAfter = 2 * time.Second, time.Second
	// maxReads is how many reads there are at a time for one provider.
	maxReads = 4
	// maxProviderBytes is what is kept of one provider, and maxBytes of all: of each the
	// answer that was used least lately goes first.
	maxProviderBytes, maxBytes = 8 << 20, 64 << 20
	// unusedFor is how long an answer is kept that nobody uses.
	unusedFor = 24 * time.Hour
)

// ErrUnread is what writes are told when there is no answer, neither now nor from before.
// Why, the shard's log says: where shards are is nobody else's business.
var ErrUnread = errors.New("the parameters cannot be read: the shard that has them does not answer, and nothing is known from before: try again later")

// maxRead is how long an answer may be, before it is decoded.
const maxRead = 2 << 20

var errTooLarge = fmt.Errorf("the parameters are larger than %d MiB, and no more are read at a time: make them smaller, or select fewer", maxRead>>20)

// Place is where a policy is, and so its parameters.
type Location struct {
	Shard   string
	Cluster logicalcluster.Name
}

// Read returns what a shard answers to a GET in a logical cluster, as JSON. What it says in
// place of that is an apierrors.APIStatus.
type Read func(ctx context.Context, at Location, path string, query url.Values) ([]byte, error)

// Cache remembers answers. It is safe for concurrent use.
type Cache struct {
	read Read

	mu        sync.Mutex
	entries   map[key]*entry
	providers map[Location]*provider
	// recent has all entries, those that were used last first.
	recent  *list.List
	bytes   int
	changes uint64
	stopped bool
	reads   sync.WaitGroup
}

// New returns a Cache that knows nothing.
func New(read Read) *Cache {
	return &Cache{read: read, entries: map[key]*entry{}, providers: map[Location]*provider{}, recent: list.New()}
}

// key is a question: what is at a path, of objects with labels if it is a list, for policies
// that name the kind.
type key struct {
	Location

	kind           schema.GroupVersionKind
	path, selector string
	list           bool
}

func (k *key) query() url.Values {
	query := url.Values{}
	if k.list {
		query.Set("limit", strconv.Itoa(MaxObjects))
	}
	if k.selector != "" {
		query.Set("labelSelector", k.selector)
	}
	return query
}

// entry is an answer. The lock of the cache guards it.
type entry struct {
	key

	provider     *provider
	answer       *answer
	weight       int
	asked, used  time.Time
	reading      chan struct{}
	inAll, inOwn *list.Element
}

// provider is what is known of one.
type provider struct {
	reads *semaphore.Weighted
	// recent has its entries, those that were used last first.
	recent *list.List
	bytes  int
	// retry is when it may be asked again, as long as it could not be the last time.
	retry time.Time
}

// Stop ends reading, and waits for what is being read.
func (c *Cache) Stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.reads.Wait()
}

// get returns the answer to a question, which parse makes of what was read.
func (c *Cache) get(k key, parse func([]byte) (*answer, error)) (*answer, error) {
	c.mu.Lock()
	e := c.use(k)
	last, age := e.answer, time.Since(e.asked)
	// Nobody waits for a shard again and again that does not answer.
	wait := last == nil || age >= maxAge && e.provider.retry.IsZero()
	var reading chan struct{}
	if last == nil || age >= freshFor {
		reading = c.start(e, parse)
	}
	c.mu.Unlock()
	if reading != nil && wait {
		<-reading // which readTimeout bounds
		c.mu.Lock()
		last = e.answer
		c.mu.Unlock()
	}
	if last == nil {
		return nil, ErrUnread
	}
	return last, last.refused
}

// use returns the entry of a question, which is the last to go from now on. The caller
// holds the lock, as with all that follows.
func (c *Cache) use(k key) *entry {
	e := c.entries[k]
	if e == nil {
		e = c.add(k)
	}
	e.used = time.Now()
	c.recent.MoveToFront(e.inAll)
	e.provider.recent.MoveToFront(e.inOwn)
	return e
}

func (c *Cache) add(k key) *entry {
	p := c.providers[k.Location]
	if p == nil {
		p = &provider{reads: semaphore.NewWeighted(maxReads), recent: list.New()}
		c.providers[k.Location] = p
	}
	e := &entry{key: k, provider: p}
	c.entries[k] = e
	e.inAll, e.inOwn = c.recent.PushFront(e), p.recent.PushFront(e)
	c.weigh(e)
	return e
}

// weigh counts what an entry takes, and makes room for it.
func (c *Cache) weigh(e *entry) {
	weight := e.answer.weight() + len(e.path) + len(e.selector) + 512 // what it takes itself
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

// start reads anew what is not being read, and returns what is closed afterwards; nil if it
// must not be read now.
func (c *Cache) start(e *entry, parse func([]byte) (*answer, error)) chan struct{} {
	if e.reading != nil {
		return e.reading
	}
	if c.stopped || time.Now().Before(e.provider.retry) {
		return nil
	}
	done := make(chan struct{})
	e.reading = done
	c.reads.Go(func() {
		found, err := c.ask(e, parse)
		c.mu.Lock()
		defer c.mu.Unlock()
		e.reading = nil
		close(done)
		c.told(e, found, err)
	})
	return done
}

// ask reads. What is refused is an answer.
func (c *Cache) ask(e *entry, parse func([]byte) (*answer, error)) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout) //nolint:forbidigo // upstream's listers have none, and it is read for all who wait
	defer cancel()
	if err := e.provider.reads.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("%d parameters of the logical cluster are being read: %w", maxReads, err)
	}
	defer e.provider.reads.Release(1)
	content, err := c.read(ctx, e.Location, e.path, e.query())
	var found *answer
	if err == nil {
		found, err = parse(content)
	}
	var status apierrors.APIStatus
	switch said := errors.As(err, &status); {
	case err == nil && found.weight() > maxProviderBytes:
		return &answer{refused: errTooLarge}, nil
	case err == nil:
		return found, nil
	case apierrors.IsNotFound(err):
		return &answer{Missing: true}, nil
	case errors.Is(err, errTooLarge) || errors.Is(err, ErrTooMany):
		return &answer{refused: err}, nil
	case said && status.Status().Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err):
		klog.V(2).InfoS("A shard does not show parameters of policies", "shard", e.Shard, "cluster", e.Cluster, "path", e.path, "reason", err)
		return &answer{refused: errRefused}, nil
	default:
		return nil, err
	}
}

// errRefused is what writes are told where the answer is neither an object nor that there is
// none.
var errRefused = errors.New("the parameters cannot be read: the shard that has them refuses to show them")

// told notes what came of a read: if nothing, the last answer holds.
func (c *Cache) told(e *entry, found *answer, err error) {
	if err != nil {
		klog.V(2).InfoS("Cannot read parameters of policies", "shard", e.Shard, "cluster", e.Cluster, "path", e.path, "reason", err)
		e.provider.retry = time.Now().Add(retryAfter)
		if e.answer == nil {
			c.remove(e)
		}
		return
	}
	e.asked, e.provider.retry = time.Now(), time.Time{}
	if !reflect.DeepEqual(e.answer, found) {
		c.changes++
	}
	e.answer = found
	if c.entries[e.key] == e {
		c.weigh(e)
	}
}

// forget drops what is known of a kind.
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
		if e.kind == kind {
			c.remove(e)
			c.changes++
		}
	}
}
