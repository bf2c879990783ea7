// Command read-log reads the CDC log of a table with scylla-cdc-go, drops the rows, and prints how many there were and
// the seconds from the start of the reader to the last row.
//
//	read-log HOST PORT USER PASSWORD KEYSPACE.TABLE ROWS
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gocql/gocql"
	scyllacdc "github.com/scylladb/scylla-cdc-go"
)

// history is how far back the reader starts, and the width of its first query: one query per group of streams then reads
// the whole log, which no narrower window can beat.
const history = 24 * time.Hour

type counter struct {
	expected, rows atomic.Int64
	done           chan struct{}
}

func (c *counter) CreateChangeConsumer(context.Context, scyllacdc.CreateChangeConsumerInput) (scyllacdc.ChangeConsumer, error) {
	return c, nil
}

func (c *counter) Consume(_ context.Context, change scyllacdc.Change) error {
	if c.rows.Add(int64(len(change.Delta))) == c.expected.Load() {
		close(c.done)
	}
	return nil
}

func (c *counter) End() error { return nil }

func main() {
	if len(os.Args) != 7 {
		log.Fatal("usage: read-log HOST PORT USER PASSWORD KEYSPACE.TABLE ROWS")
	}
	host, user, password, table := os.Args[1], os.Args[3], os.Args[4], os.Args[5]
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	expected, err := strconv.ParseInt(os.Args[6], 10, 64)
	if err != nil {
		log.Fatal(err)
	}

	cluster := gocql.NewCluster(host)
	cluster.Port = port
	cluster.ProtoVersion = 4
	cluster.Timeout = time.Minute
	cluster.Authenticator = gocql.PasswordAuthenticator{Username: user, Password: password}
	session, err := cluster.CreateSession()
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()

	consumer := &counter{done: make(chan struct{})}
	consumer.expected.Store(expected)
	begun := time.Now()
	reader, err := scyllacdc.NewReader(context.Background(), &scyllacdc.ReaderConfig{
		Session:               session,
		TableNames:            []string{table},
		Consistency:           gocql.Quorum,
		ChangeConsumerFactory: consumer,
		Logger:                log.New(os.Stderr, "", log.LstdFlags),
		Advanced: scyllacdc.AdvancedReaderConfig{
			ChangeAgeLimit:       history,
			QueryTimeWindowSize:  history,
			ConfidenceWindowSize: time.Second,
			// No pauses: only the reading counts.
			PostGenerationFetchDelay: 100 * time.Millisecond,
			PostEmptyQueryDelay:      time.Millisecond,
			PostNonEmptyQueryDelay:   time.Millisecond,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- reader.Run(context.Background()) }()
	select {
	case <-consumer.done:
	case err := <-failed:
		log.Fatalf("the reader ended after %d of %d rows: %v", consumer.rows.Load(), expected, err)
	case <-time.After(5 * time.Minute):
		log.Fatalf("%d of %d rows came in five minutes", consumer.rows.Load(), expected)
	}
	fmt.Printf("%d %.3f\n", consumer.rows.Load(), time.Since(begun).Seconds())
}
