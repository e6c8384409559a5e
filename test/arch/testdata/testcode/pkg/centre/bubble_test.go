package centre

import (
	"github.com/shardplane/shardplane/test/bubble"
	"testing"
	"time"
)

func inBubble(t *testing.T) {
	bubble.Test(t, func(*testing.T) { <-time.After(time.Second) })
}
