package authz

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/util/cache"
)

// maxAnswers is how many answers are remembered.
const maxAnswers = 10_000

// Answers remembers what other servers say that users may do. It is safe for concurrent use.
type Answers struct {
	allowedFor, deniedFor time.Duration

	known  *cache.LRUExpireCache
	asking singleflight.Group
}

// NewAnswers returns Answers that remembers what is allowed and what is denied for that long,
// 0 for not at all.
func NewAnswers(allowedFor, deniedFor time.Duration) *Answers {
	return &Answers{allowedFor: allowedFor, deniedFor: deniedFor, known: cache.NewLRUExpireCache(maxAnswers)}
}

// May answers a question about a user in the logical cluster of a server that where names. What is
// not known is asked, once for all who have the same question at the same time; the context of
// ask does not end with that of one of them.
func (a *Answers) May(ctx context.Context, where string, review *authorizationv1.SubjectAccessReview, ask func(context.Context) (bool, error)) (bool, error) {
	text, err := json.Marshal(review.Spec)
	if err != nil {
		return false, fmt.Errorf("encoding the question what user %q may do: %w", review.Spec.User, err)
	}
	// A digest, since users choose how long a question is, by the groups and names that they impersonate.
	sum := sha256.Sum256(append([]byte(where+"|"), text...))
	key := string(sum[:])
	if may, ok := a.known.Get(key); ok {
		return may.(bool), nil
	}
	done := a.asking.DoChan(key, func() (any, error) {
		may, err := ask(context.WithoutCancel(ctx))
		keep := a.deniedFor
		if may {
			keep = a.allowedFor
		}
		if err == nil && keep > 0 {
			a.known.Add(key, may, keep)
		}
		return may, err
	})
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case result := <-done:
		may, _ := result.Val.(bool)
		return may, result.Err
	}
}
