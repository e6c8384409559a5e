package centre

import (
	"testing"
	"testing/synctest"
	"time"
)

func inBubble(t *testing.T) {
	synctest.Test(t, func(*testing.T) { <-time.After(time.Second) })
}
