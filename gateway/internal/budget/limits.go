package budget

// The limits of an agent's connection. An honest agent reports once in ten seconds while its job is well, once a
// second while it is not, and a few times at once when its processes end.
const (
	ReportsPerSecond = 5 // ordinary ones a pod; more are kept (the newest wins) and answered as thinned
	ReportsBurst     = 10
	UrgentPerSecond  = 10 // a pod; more are taken as ordinary ones
	UrgentBurst      = 20

	// What is read from a connection at all. Beyond it the gateway reads later, and the sender's window fills.
	MessagesPerSecond = 40
	MessagesBurst     = 200
	ReadReports       = 4 // largest reports a second
	ReadReportsBurst  = 8

	StreamsPerSecond = 2 // beginnings of streams a connection
	StreamsBurst     = 10

	smallestLargestReport = 64 << 10
	reportBytes           = 16 << 10
	reportBytesPerRank    = 4 << 10

	// MaxAgentMessage bounds what gRPC accepts from an agent: the largest report of 59 ranks in a pod, and its frame.
	MaxAgentMessage = 256 << 10
	messageFrame    = 64

	// A job that is well writes some hundred bytes a rank in ten seconds; one with a tenth of its ranks slow, the
	// reports of these ranks' pods each second.
	jobBytesPerSecond  = 64 << 10
	podBytesPerSecond  = 128
	rankBytesPerSecond = 64
	burstSeconds       = 16
	// An honest agent sends at most a kibibyte of series a rank and minute, and as much of its container.
	seriesBytesPerRank   = 1 << 10
	seriesBytesBeside    = 2 << 10
	seriesBurstMinutes   = 4
	secondsOfAMinute     = 60
	largestSeriesMinutes = 2 // of a chunk, which holds one
	// SeriesFrame is what a chunk costs without its payload: empty chunks would else cost nothing.
	SeriesFrame = 256

	connectionsPerPod     = 2 // the old connection may end after the new one has begun
	connectionsBesidePods = 8
)

// Limits are the bounds of one job, from what the operator announced.
type Limits struct {
	LargestReport  int     // bytes
	BytesPerSecond float64 // that leave the gateway for the job, to etcd and to the operator
	BurstBytes     float64
	Connections    int
	LargestSeries  int     // bytes of a chunk
	SeriesPerSec   float64 // bytes of chunks that are taken of a pod
	SeriesBurst    float64
}

// For returns the limits of a job of so many pods, each of so many ranks.
func For(pods, ranksPerPod int) Limits {
	rate := float64(jobBytesPerSecond + pods*(podBytesPerSecond+ranksPerPod*rankBytesPerSecond))
	largest := max(smallestLargestReport, reportBytes+ranksPerPod*reportBytesPerRank)
	series := seriesBytesBeside + ranksPerPod*seriesBytesPerRank // a minute
	return Limits{
		LargestSeries:  min(largestSeriesMinutes*series, MaxAgentMessage-messageFrame),
		SeriesPerSec:   float64(series+SeriesFrame) / secondsOfAMinute,
		SeriesBurst:    float64(seriesBurstMinutes * (series + SeriesFrame)),
		LargestReport:  min(largest, MaxAgentMessage-messageFrame),
		BytesPerSecond: rate,
		BurstBytes:     burstSeconds * rate,
		Connections:    connectionsPerPod*pods + connectionsBesidePods,
	}
}
