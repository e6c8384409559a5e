package access

import (
	"testing"

	"github.com/shardplane/shardplane/test/integration/kit"
)

func TestMain(m *testing.M) { kit.Main(m, nil) }
